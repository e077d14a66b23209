#include "model/param_table.h"

namespace weft {

ParamSpec& ParamTableBuilder::add(std::string_view name, std::string_view role, const Shape& shape, DType dtype,
                                  Storage storage, Split split) {
  return table_.emplace_back(ParamSpec{.name = prefix_ + std::string(name),
                                       .role = std::string(role),
                                       .shape = shape,
                                       .dtype = dtype,
                                       .storage = storage,
                                       .split = split,
                                       .owner = owner_,
                                       .layer = layer_});
}

void ParamTableBuilder::experts(std::string_view name, std::string_view role, int64_t count, const Shape& shape, Split split) {
  ParamSpec& spec = add(name, role, shape, DType::bf16, Storage::packed, split);
  spec.copies = count;
  spec.matrix = true;
}

std::string expert_name(const ParamSpec& spec, int64_t expert) {
  const size_t mark = spec.name.find("{}");
  if (mark == std::string::npos) return spec.name;
  return spec.name.substr(0, mark) + std::to_string(expert) + spec.name.substr(mark + 2);
}

}  // namespace weft
