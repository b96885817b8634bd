#include "python/src/exchange.h"

#include <cstddef>
#include <span>
#include <utility>

#include "gpmstore/error.h"
#include "python/src/gil.h"

namespace gpm::python {
namespace {

/// Memory of the library's for the time of a call: who keeps one of these views finds it released
/// then, unless it has made another one of it.
class Views {
 public:
  template <class Parts>
  explicit Views(const Parts& parts) {
    for (const auto& part : parts) {
      static char nothing;
      auto* const data = const_cast<std::byte*>(part.data());
      list_.append(
          nb::steal(PyMemoryView_FromMemory(part.empty() ? &nothing : reinterpret_cast<char*>(data),
                                            static_cast<Py_ssize_t>(part.size()), PyBUF_WRITE)));
    }
  }
  Views(const Views&) = delete;
  Views& operator=(const Views&) = delete;
  ~Views() {
    for (const nb::handle view : list_) {
      try {
        view.attr("release")();
      } catch (nb::python_error& error) {  // it is used, as by an exception's traceback
        static_cast<void>(error);
      }
    }
  }
  const nb::list& list() const { return list_; }

 private:
  nb::list list_;
};

thread_local bool in_call = false;

std::string TextOf(const nb::python_error& error) {
  try {
    const std::string text = nb::str(error.value()).c_str();
    return text.empty() ? nb::type_name(error.type()).c_str() : text;
  } catch (const nb::python_error&) {
    return "an exception without a text";
  }
}

}  // namespace

PyExchange::PyExchange(nb::object object) : object_(std::move(object)) {
  rank_ = nb::cast<std::uint32_t>(object_.attr("rank"));
  ranks_ = nb::cast<std::uint32_t>(object_.attr("ranks"));
  if (rank_ >= ranks_) {
    throw Error(ErrorCode::kInvalidArgument, "exchange: rank " + std::to_string(rank_) + " of " +
                                                 std::to_string(ranks_) + "; it must be below");
  }
}

PyExchange::~PyExchange() {
  if (!nb::is_alive()) {
    static_cast<void>(object_.release());
    return;
  }
  const HeldGil gil;
  End("it was closed", "");
  object_.reset();
}

void PyExchange::AllToAll(Send send, Receive receive) {
  if (!failure_.empty()) throw Error(ErrorCode::kIo, "exchange: " + failure_);
  const HeldGil gil;
  const struct InObject {
    InObject() { in_call = true; }
    ~InObject() { in_call = false; }
  } in_object;
  try {
    const Views sent(send);
    const Views received(receive);
    object_.attr("all_to_all")(sent.list(), received.list());
  } catch (nb::python_error& error) {
    const std::string text = TextOf(error);
    End(text, text);
    if (!error.matches(PyExc_Exception)) throw;
    throw Error(ErrorCode::kIo, "exchange: " + text);
  }
}

bool PyExchange::InCall() { return in_call; }

void PyExchange::Leave(const std::string& why) {
  const HeldGil gil;
  End("this rank has left: " + why, why);
}

void PyExchange::End(const std::string& failure, const std::string& why) {
  if (!failure_.empty()) return;
  failure_ = failure;
  try {
    object_.attr("leave")(nb::str(why.data(), why.size()));
  } catch (nb::python_error& error) {
    error.discard_as_unraisable(object_);
  }
}

}  // namespace gpm::python
