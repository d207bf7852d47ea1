// What every C entry does before and after it calls the typed function of entry_points.h: checks,
// conversion of handles, conversion of errors. They follow from the types of the parameters.
#pragma once

#include <new>
#include <type_traits>

#include "driver/state.h"

namespace tonnage::driver {

// What the API passes where a typed function takes an object.
template <class Param>
struct AsC {
  using Type = Param;
};
template <>
struct AsC<Device*> {
  using Type = CUdevice;
};
template <>
struct AsC<Stream*> {
  using Type = CUstream;
};

// What a call has found on its way in.
struct Caller {
  Driver* driver = nullptr;
  Context* context = nullptr;
  CUresult result = CUDA_SUCCESS;

  bool find_driver() {
    driver = tonnage::driver::driver();
    if (!driver) result = CUDA_ERROR_NOT_INITIALIZED;
    return driver;
  }
  bool find_context() {
    if (!find_driver()) return false;
    context = current_context();
    if (!context)
      result = CUDA_ERROR_INVALID_CONTEXT;
    else if (!context->alive.load(std::memory_order_relaxed))
      result = CUDA_ERROR_CONTEXT_IS_DESTROYED;
    return result == CUDA_SUCCESS;
  }
  template <class Param>
  Param convert(typename AsC<Param>::Type argument) {
    if constexpr (std::is_same_v<Param, Device*>) {
      Device* device = driver->device(argument);
      if (!device) result = CUDA_ERROR_INVALID_DEVICE;
      return device;
    } else if constexpr (std::is_same_v<Param, Stream*>) {
      Stream* stream = to_stream(argument, context);
      if (!stream) result = CUDA_ERROR_INVALID_HANDLE;
      return stream;
    } else {
      return argument;
    }
  }
};

template <class Param, class... Params>
inline constexpr bool kHas = (std::is_same_v<Param, Params> || ...);

// Calls `use` with the converted parameters, or says why it cannot. Nothing is thrown across C.
template <bool kNeedsDriver, bool kNeedsContext, class... Params, class Use>
CUresult enter(Use use, typename AsC<Params>::Type... arguments) noexcept {
  try {
    Caller caller;
    if constexpr (kNeedsContext || kHas<Stream*, Params...>) {
      if (!caller.find_context()) return caller.result;
    } else if constexpr (kNeedsDriver || kHas<Device*, Params...>) {
      if (!caller.find_driver()) return caller.result;
    }
    if constexpr (kHas<Device*, Params...> || kHas<Stream*, Params...>) {
      return [&](Params... parameters) {
        return caller.result == CUDA_SUCCESS ? use(caller, parameters...) : caller.result;
      }(caller.convert<Params>(arguments)...);
    } else {
      return use(caller, arguments...);
    }
  } catch (const std::bad_alloc&) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  } catch (...) {
    return CUDA_ERROR_UNKNOWN;
  }
}

// Entry<&function>::call is the C function in front of a typed one.
template <auto kFunction, class Signature = decltype(kFunction)>
struct Entry;

template <auto kFunction, class... Params>
struct Entry<kFunction, CUresult (*)(Params...)> {
  static CUresult call(typename AsC<Params>::Type... arguments) noexcept {
    return enter<false, false, Params...>(
        [](Caller&, Params... parameters) { return kFunction(parameters...); }, arguments...);
  }
};

template <auto kFunction, class... Params>
struct Entry<kFunction, CUresult (*)(Driver*, Params...)> {
  static CUresult call(typename AsC<Params>::Type... arguments) noexcept {
    return enter<true, false, Params...>(
        [](Caller& caller, Params... parameters) {
          return kFunction(caller.driver, parameters...);
        },
        arguments...);
  }
};

template <auto kFunction, class... Params>
struct Entry<kFunction, CUresult (*)(Context*, Params...)> {
  static CUresult call(typename AsC<Params>::Type... arguments) noexcept {
    return enter<false, true, Params...>(
        [](Caller& caller, Params... parameters) {
          return kFunction(caller.context, parameters...);
        },
        arguments...);
  }
};

}  // namespace tonnage::driver
