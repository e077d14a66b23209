#include "model/sequence_state.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace weft {
namespace {

constexpr std::string_view kPlace = "sequence state";

std::byte* bytes_of(float* values) { return reinterpret_cast<std::byte*>(values); }
int64_t size_of_floats(int64_t count) { return count * static_cast<int64_t>(sizeof(float)); }

// Where a layer's row of a position lies in its page.
template <class Float>
Float* page_row(Float* page, const LayerState& layer, int64_t position) {
  return page + layer.page_offset + (position % ops::kPageTokens) * layer.page_width;
}

std::string saved_name(LayerIndex layer, std::string_view name) { return fmt::format("layers.{}.{}", layer, name); }

}  // namespace

SequenceState::~SequenceState() { drop(); }

SequenceState::SequenceState(SequenceState&& other) noexcept
    : pool_(other.pool_),
      consumed_(std::exchange(other.consumed_, TokenCount(0))),
      slot_(std::exchange(other.slot_, std::nullopt)),
      pages_(std::exchange(other.pages_, {})),
      step_(std::exchange(other.step_, std::nullopt)),
      broken_(std::exchange(other.broken_, false)) {}

SequenceState& SequenceState::operator=(SequenceState&& other) noexcept {
  if (this != &other) {
    drop();
    pool_ = other.pool_;
    consumed_ = std::exchange(other.consumed_, TokenCount(0));
    slot_ = std::exchange(other.slot_, std::nullopt);
    pages_ = std::exchange(other.pages_, {});
    step_ = std::exchange(other.step_, std::nullopt);
    broken_ = std::exchange(other.broken_, false);
  }
  return *this;
}

void SequenceState::drop() noexcept {
  if (step_) undo(*step_);
  step_.reset();
  for (const PageId page : pages_) pool_->release(page);
  pages_.clear();
  if (slot_) pool_->release(*slot_);
  slot_.reset();
}

void SequenceState::undo(Step& step) noexcept {
  for (const PageId page : step.new_pages) pool_->release(page);
  for (const CheckpointSlot& checkpoint : step.checkpoints) pool_->release(checkpoint.slot);
  if (step.own_slot) pool_->release(step.slot_out);
}

void SequenceState::check_usable() const {
  if (broken_) {
    fail(ErrorKind::unavailable, kPlace, "wanted a state of {} tokens, found one that a failed step may have overwritten",
         consumed_);
  }
  if (step_) fail(ErrorKind::internal, kPlace, "wanted a state between steps, found a step of {} rows open", step_->rows);
}

SequenceState SequenceState::fork() const {
  check_usable();
  SequenceState copy(*pool_);
  copy.consumed_ = consumed_;
  if (slot_) {
    pool_->retain(*slot_);
    copy.slot_ = slot_;
  }
  for (const PageId page : pages_) {
    pool_->retain(page);
    copy.pages_.push_back(page);
  }
  return copy;
}

RowGroup SequenceState::extend(int64_t first_row, int64_t rows, std::span<const int64_t> checkpoint_offsets) {
  check_usable();
  if (rows <= 0) fail(ErrorKind::internal, kPlace, "wanted at least one row, found {}", rows);
  Step step;
  step.rows = rows;
  step.pages = pages_;
  try {
    step.own_slot = !slot_ || pool_->shared(*slot_);
    if (step.own_slot) {
      step.own_slot = false;  // until it is taken
      step.slot_out = pool_->take_slot();
      step.own_slot = true;
    } else {
      step.slot_out = *slot_;
    }
    int64_t last = 0;
    for (const int64_t offset : checkpoint_offsets) {
      if (offset <= last || offset > rows) {
        fail(ErrorKind::internal, kPlace, "wanted ascending checkpoint offsets in (0, {}], found {}", rows, offset);
      }
      last = offset;
      step.keep_end = offset == rows;
      if (!step.keep_end) step.checkpoints.push_back({offset, pool_->take_slot()});
    }
    // The last page is written to when it is not full; a shared one is copied first.
    if (consumed_.value % ops::kPageTokens != 0 && !step.pages.empty() && pool_->shared(step.pages.back())) {
      const PageId copy = pool_->take_page();
      step.new_pages.push_back(copy);
      pool_->device().copy(bytes_of(pool_->data(copy)), bytes_of(pool_->data(step.pages.back())),
                           size_of_floats(pool_->layout().page_floats()));
      step.replaced.push_back(step.pages.back());
      step.pages.back() = copy;
    }
    const int64_t wanted = pool_->layout().page_floats() == 0 ? 0 : pages_for(consumed_ + TokenCount(rows));
    while (static_cast<int64_t>(step.pages.size()) < wanted) {
      const PageId page = pool_->take_page();
      step.new_pages.push_back(page);
      step.pages.push_back(page);
    }
  } catch (...) {
    undo(step);
    throw;
  }
  RowGroup group{first_row, rows, consumed_, slot_, step.slot_out, step.pages, step.checkpoints, pool_};
  step_ = std::move(step);
  return group;
}

std::vector<SequenceState> SequenceState::commit() {
  if (!step_) fail(ErrorKind::internal, kPlace, "wanted an open step to commit, found none");
  Step step = std::move(*step_);
  step_.reset();
  if (step.own_slot && slot_) pool_->release(*slot_);
  slot_ = step.slot_out;
  for (const PageId page : step.replaced) pool_->release(page);
  pages_ = std::move(step.pages);

  std::vector<SequenceState> checkpoints;
  checkpoints.reserve(step.checkpoints.size() + 1);
  for (const CheckpointSlot& checkpoint : step.checkpoints) {
    SequenceState& state = checkpoints.emplace_back(*pool_);
    state.consumed_ = consumed_ + TokenCount(checkpoint.offset);
    state.slot_ = checkpoint.slot;
    const int64_t page_count = std::min<int64_t>(pages_for(state.consumed_), static_cast<int64_t>(pages_.size()));
    for (int64_t i = 0; i < page_count; ++i) {
      pool_->retain(pages_[static_cast<size_t>(i)]);
      state.pages_.push_back(pages_[static_cast<size_t>(i)]);
    }
  }
  consumed_ += TokenCount(step.rows);
  if (step.keep_end) checkpoints.push_back(fork());
  return checkpoints;
}

void SequenceState::fail_step() noexcept {
  if (!step_) return;
  if (!step_->own_slot) broken_ = true;
  undo(*step_);
  step_.reset();
}

SequenceState::Tensors SequenceState::export_tensors() const {
  check_usable();
  Tensors tensors;
  if (consumed_ == TokenCount(0)) return tensors;
  Device& device = pool_->device();
  float* slot = pool_->data(*slot_);
  for (const LayerState& layer : pool_->layout().states()) {
    for (const SlotTensor& part : layer.slot) {
      tensors.emplace(saved_name(layer.layer, part.name), device.fetch({DType::f32, part.shape, bytes_of(slot + part.offset)}));
    }
    for (const PageTensor& part : layer.page) {
      tensors.emplace(saved_name(layer.layer, part.name), Tensor::uninitialized(DType::f32, {consumed_.value, part.width}));
    }
  }
  // Page by page: each lies in one piece on the device.
  for (size_t i = 0; i < pages_.size(); ++i) {
    const Tensor page = device.fetch({DType::f32, {pool_->layout().page_floats()}, bytes_of(pool_->data(pages_[i]))});
    const int64_t first = static_cast<int64_t>(i) * ops::kPageTokens;
    for (const LayerState& layer : pool_->layout().states()) {
      for (const PageTensor& part : layer.page) {
        float* out = tensors.at(saved_name(layer.layer, part.name)).as<float>().data();
        for (int64_t position = first; position < std::min(first + ops::kPageTokens, consumed_.value); ++position) {
          std::copy_n(page_row(page.as<float>().data(), layer, position) + part.column, part.width,
                      out + position * part.width);
        }
      }
    }
  }
  return tensors;
}

SequenceState SequenceState::import_tensors(StatePool& pool, TokenCount consumed,
                                            const std::map<std::string, TensorView>& tensors) {
  SequenceState state(pool);
  if (consumed == TokenCount(0)) {
    if (!tensors.empty()) {
      fail(ErrorKind::bad_input, kPlace, "wanted no tensors in the state of 0 tokens, found '{}'", tensors.begin()->first);
    }
    return state;
  }
  const LayerRange range = pool.layout().layers();
  const auto has = [&](const LayerState& layer) {
    const std::string prefix = saved_name(layer.layer, "");
    const auto at = tensors.lower_bound(prefix);
    return at != tensors.end() && at->first.starts_with(prefix);
  };
  if (const int64_t layers = std::ranges::count_if(pool.layout().states(), has); layers != range.size()) {
    fail(ErrorKind::bad_input, kPlace, "wanted the state of the {} layers [{}, {}), found that of {} of them", range.size(),
         range.begin, range.end, layers);
  }
  const auto find = [&](LayerIndex layer, const std::string& part, const Shape& shape) {
    const std::string name = saved_name(layer, part);
    const auto at = tensors.find(name);
    if (at == tensors.end()) {
      fail(ErrorKind::bad_input, kPlace, "tensor '{}': wanted F32 {} for layers [{}, {}), found none", name, shape, range.begin,
           range.end);
    }
    if (at->second.dtype != DType::f32 || !(at->second.shape == shape)) {
      fail(ErrorKind::bad_input, kPlace, "tensor '{}': wanted F32 {}, found {} {}", name, shape, at->second.dtype,
           at->second.shape);
    }
    return at->second.as<float>().data();
  };
  // Everything is looked up before memory is taken: a count that the tensors do not bear out must not reserve pages.
  std::vector<const float*> sources;
  for (const LayerState& layer : pool.layout().states()) {
    for (const SlotTensor& part : layer.slot) sources.push_back(find(layer.layer, part.name, part.shape));
    for (const PageTensor& part : layer.page) sources.push_back(find(layer.layer, part.name, {consumed.value, part.width}));
  }
  for (const LayerState& layer : pool.layout().states()) {
    const std::string prefix = saved_name(layer.layer, "");
    for (auto at = tensors.lower_bound(prefix); at != tensors.end() && at->first.starts_with(prefix); ++at) {
      const std::string_view part = std::string_view(at->first).substr(prefix.size());
      if (!std::ranges::count(layer.slot, part, &SlotTensor::name) &&
          !std::ranges::count(layer.page, part, &PageTensor::name)) {
        fail(ErrorKind::bad_input, kPlace, "tensor '{}': wanted the state of layer {}, found a tensor that is not part of it",
             at->first, layer.layer);
      }
    }
  }
  (void)state.extend(0, consumed.value);
  float* slot = pool.data(state.step_->slot_out);
  std::vector<Tensor> pages;
  for (size_t i = 0; i < state.step_->pages.size(); ++i) {
    pages.push_back(Tensor::zeros(DType::f32, {pool.layout().page_floats()}));
  }
  auto source = sources.begin();
  for (const LayerState& layer : pool.layout().states()) {
    for (const SlotTensor& part : layer.slot) {
      pool.device().upload(bytes_of(slot + part.offset), reinterpret_cast<const std::byte*>(*source++),
                           size_of_floats(part.shape.elements()));
    }
    for (const PageTensor& part : layer.page) {
      const float* rows = *source++;
      for (int64_t position = 0; position < consumed.value; ++position) {
        float* page = pages[static_cast<size_t>(position / ops::kPageTokens)].as<float>().data();
        std::copy_n(rows + position * part.width, part.width, page_row(page, layer, position) + part.column);
      }
    }
  }
  for (size_t i = 0; i < pages.size(); ++i) {
    pool.device().upload(bytes_of(pool.data(state.step_->pages[i])), pages[i].view().data, pages[i].bytes());
  }
  (void)state.commit();
  return state;
}

}  // namespace weft
