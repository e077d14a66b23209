// One connection: a coroutine on a strand that reads requests, hands them to the handler and sends what it answers.
#pragma once

#include <memory>
#include <string>

#include <boost/asio/io_context.hpp>
#include <boost/asio/strand.hpp>

#include "server/http/byte_stream.h"
#include "server/http/hub.h"

namespace weft::http {

using Strand = boost::asio::strand<boost::asio::io_context::executor_type>;

// Serves `stream`, all of whose work is done on `strand`, until it ends. The connection is a member of `hub`, which outlives
// it: Hub::wait_until_empty().
void serve(const Strand& strand, std::unique_ptr<ByteStream> stream, std::string peer, Hub& hub);

}  // namespace weft::http
