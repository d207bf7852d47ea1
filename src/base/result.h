// Result<T>: a value, or an Error that says what happened, where, and what to do about it.
//
// The four kinds of "it did not work" are kept apart (docs/tour.md, "Errors"): a broken contract is
// an assertion; a failed operation is an Error in a Result; "the answer is no" (does not fit) is a
// value; something that was not seen is counted.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <variant>

namespace tonnage {

// Serialised in JSON reports by name: append only.
enum class ErrorCode {
  kUsage,
  kNotFound,
  kIo,
  kCorrupt,
  kTooNew,
  kTooOld,
  kUnsupported,
  kLimit,
  kSystem
};

struct Error {
  ErrorCode code = ErrorCode::kSystem;
  std::string message;  // what happened, one sentence, no trailing full stop
  std::string where;    // file, offset, option or function; may be empty
  std::string hint;     // what the user can do; may be empty

  // "where: message (hint)" for a terminal.
  std::string text() const {
    std::string out;
    if (!where.empty()) out += where + ": ";
    out += message;
    if (!hint.empty()) out += "\n  " + hint;
    return out;
  }
};

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

  bool has_value() const { return state_.index() == 0; }
  explicit operator bool() const { return has_value(); }
  T& value() & { return std::get<0>(state_); }
  const T& value() const& { return std::get<0>(state_); }
  T&& value() && { return std::get<0>(std::move(state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  const Error& error() const { return std::get<1>(state_); }

 private:
  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}
  bool has_value() const { return !error_; }
  explicit operator bool() const { return has_value(); }
  const Error& error() const { return *error_; }

 private:
  std::optional<Error> error_;
};

}  // namespace tonnage
