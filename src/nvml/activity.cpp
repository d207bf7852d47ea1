// Clocks, power, temperature, utilisation.
//
// Kernels do nothing on a virtual card, so it is idle: no utilisation, a resting temperature and a
// tenth of the power limit. These constants are no model of anything; programs that log them get
// numbers of the right kind (docs/cards.md).
#include <time.h>

#include "nvml/state.h"

using namespace tonnage::nvml;
using namespace tonnage::nvml;

// An H200 of 700 W can be set to 200 W; others are near that share.
unsigned int tonnage::nvml::least_power_limit(const abi::CardDesc& card) {
  return static_cast<unsigned int>(card.power_limit_watts) * 2 / 7 * 1000;
}

namespace {

constexpr int kClockRate = 13, kMemoryClockRate = 36;
constexpr unsigned int kSamplingMicroseconds = 100'000;

unsigned int limit_milliwatts(const abi::CardDesc& card) {
  return static_cast<unsigned int>(card.power_limit_watts) * 1000u;
}
unsigned int power_milliwatts(const abi::CardDesc& card) { return limit_milliwatts(card) / 10; }

uint64_t now_ns() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(t.tv_nsec);
}

nvmlReturn_t give_clock(nvmlDevice_t device, nvmlClockType_t type, unsigned int* clock) {
  NVML_DEVICE(device);
  NVML_NOT_NULL(clock);
  if (type >= NVML_CLOCK_COUNT) return NVML_ERROR_INVALID_ARGUMENT;
  *clock = static_cast<unsigned int>(
               attribute(card, type == NVML_CLOCK_MEM ? kMemoryClockRate : kClockRate)) /
           1000;
  return NVML_SUCCESS;
}

template <class Value, class Given>
nvmlReturn_t give(nvmlDevice_t device, Value* out, Given given) {
  NVML_DEVICE(device);
  NVML_NOT_NULL(out);
  *out = static_cast<Value>(given(card));
  return NVML_SUCCESS;
}

nvmlReturn_t give_engine(nvmlDevice_t device, unsigned int* utilisation, unsigned int* period) {
  NVML_DEVICE(device);
  if (!utilisation || !period) return NVML_ERROR_INVALID_ARGUMENT;
  *utilisation = 0;
  *period = kSamplingMicroseconds;
  return NVML_SUCCESS;
}

nvmlReturn_t give_fan(nvmlDevice_t device, unsigned int* speed) {
  NVML_DEVICE(device);
  NVML_NOT_NULL(speed);
  if (family_of(card) == Family::kDataCentre) return NVML_ERROR_NOT_SUPPORTED;
  *speed = 0;
  return NVML_SUCCESS;
}

}  // namespace

NVML_ENTRY(nvmlDeviceGetUtilizationRates)(nvmlDevice_t device, nvmlUtilization_t* utilisation) {
  NVML_DEVICE(device);
  NVML_NOT_NULL(utilisation);
  if (handle->is_slice || card.is_mig)
    return NVML_ERROR_NOT_SUPPORTED;  // as with MIG on a real card
  *utilisation = {0, 0};
  return NVML_SUCCESS;
}
NVML_ENTRY(nvmlDeviceGetEncoderUtilization)
(nvmlDevice_t device, unsigned int* utilisation, unsigned int* period) {
  return give_engine(device, utilisation, period);
}
NVML_ENTRY(nvmlDeviceGetDecoderUtilization)
(nvmlDevice_t device, unsigned int* utilisation, unsigned int* period) {
  return give_engine(device, utilisation, period);
}
NVML_ENTRY(nvmlDeviceGetJpgUtilization)
(nvmlDevice_t device, unsigned int* utilisation, unsigned int* period) {
  return give_engine(device, utilisation, period);
}
NVML_ENTRY(nvmlDeviceGetOfaUtilization)
(nvmlDevice_t device, unsigned int* utilisation, unsigned int* period) {
  return give_engine(device, utilisation, period);
}

NVML_ENTRY(nvmlDeviceGetTemperature)
(nvmlDevice_t device, nvmlTemperatureSensors_t sensor, unsigned int* celsius) {
  if (sensor != NVML_TEMPERATURE_GPU) return NVML_ERROR_INVALID_ARGUMENT;
  return give(device, celsius, [](const abi::CardDesc&) { return kRestingCelsius; });
}
NVML_ENTRY(nvmlDeviceGetTemperatureV)(nvmlDevice_t device, nvmlTemperature_t* temperature) {
  NVML_DEVICE(device);
  NVML_NOT_NULL(temperature);
  if (temperature->version != nvmlTemperature_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  if (temperature->sensorType != NVML_TEMPERATURE_GPU) return NVML_ERROR_INVALID_ARGUMENT;
  temperature->temperature = static_cast<int>(kRestingCelsius);
  return NVML_SUCCESS;
}
NVML_ENTRY(nvmlDeviceGetTemperatureThreshold)
(nvmlDevice_t device, nvmlTemperatureThresholds_t threshold, unsigned int* celsius) {
  NVML_DEVICE(device);
  NVML_NOT_NULL(celsius);
  switch (threshold) {
    case NVML_TEMPERATURE_THRESHOLD_SHUTDOWN: *celsius = 95; return NVML_SUCCESS;
    case NVML_TEMPERATURE_THRESHOLD_SLOWDOWN: *celsius = 90; return NVML_SUCCESS;
    case NVML_TEMPERATURE_THRESHOLD_GPU_MAX: *celsius = 87; return NVML_SUCCESS;
    case NVML_TEMPERATURE_THRESHOLD_MEM_MAX: *celsius = 95; return NVML_SUCCESS;
    default: return NVML_ERROR_NOT_SUPPORTED;
  }
}

NVML_ENTRY(nvmlDeviceGetNumFans)(nvmlDevice_t device, unsigned int* fans) {
  return give(device, fans, [](const abi::CardDesc& card) {
    return family_of(card) == Family::kDataCentre ? 0 : 1;
  });
}
NVML_ENTRY(nvmlDeviceGetFanSpeed)(nvmlDevice_t device, unsigned int* speed) {
  return give_fan(device, speed);
}
NVML_ENTRY(nvmlDeviceGetFanSpeed_v2)(nvmlDevice_t device, unsigned int fan, unsigned int* speed) {
  if (fan > 0) return NVML_ERROR_INVALID_ARGUMENT;
  return give_fan(device, speed);
}

NVML_ENTRY(nvmlDeviceGetPowerUsage)(nvmlDevice_t device, unsigned int* milliwatts) {
  return give(device, milliwatts, power_milliwatts);
}
NVML_ENTRY(nvmlDeviceGetPowerManagementLimit)(nvmlDevice_t device, unsigned int* limit) {
  return give(device, limit, limit_milliwatts);
}
NVML_ENTRY(nvmlDeviceGetPowerManagementDefaultLimit)(nvmlDevice_t device, unsigned int* limit) {
  return give(device, limit, limit_milliwatts);
}
NVML_ENTRY(nvmlDeviceGetEnforcedPowerLimit)(nvmlDevice_t device, unsigned int* limit) {
  return give(device, limit, limit_milliwatts);
}
NVML_ENTRY(nvmlDeviceGetPowerManagementMode)(nvmlDevice_t device, nvmlEnableState_t* mode) {
  return give(device, mode, [](const abi::CardDesc&) { return NVML_FEATURE_ENABLED; });
}
NVML_ENTRY(nvmlDeviceGetPowerManagementLimitConstraints)
(nvmlDevice_t device, unsigned int* least, unsigned int* most) {
  NVML_DEVICE(device);
  if (!least || !most) return NVML_ERROR_INVALID_ARGUMENT;
  *most = limit_milliwatts(card);
  *least = least_power_limit(card);
  return NVML_SUCCESS;
}
// Since the start of the session, at the resting power.
NVML_ENTRY(nvmlDeviceGetTotalEnergyConsumption)
(nvmlDevice_t device, unsigned long long* millijoules) {
  return give(device, millijoules, [](const abi::CardDesc& card) {
    const uint64_t start = session()->start_ns, now = now_ns();
    const double seconds = now > start ? static_cast<double>(now - start) / 1e9 : 0;
    return static_cast<unsigned long long>(seconds * power_milliwatts(card));
  });
}

NVML_ENTRY(nvmlDeviceGetClockInfo)(nvmlDevice_t device, nvmlClockType_t type, unsigned int* clock) {
  return give_clock(device, type, clock);
}
NVML_ENTRY(nvmlDeviceGetMaxClockInfo)
(nvmlDevice_t device, nvmlClockType_t type, unsigned int* clock) {
  return give_clock(device, type, clock);
}
NVML_ENTRY(nvmlDeviceGetApplicationsClock)
(nvmlDevice_t device, nvmlClockType_t type, unsigned int* clock) {
  return give_clock(device, type, clock);
}
NVML_ENTRY(nvmlDeviceGetDefaultApplicationsClock)
(nvmlDevice_t device, nvmlClockType_t type, unsigned int* clock) {
  return give_clock(device, type, clock);
}
NVML_ENTRY(nvmlDeviceGetClock)
(nvmlDevice_t device, nvmlClockType_t type, nvmlClockId_t id, unsigned int* clock) {
  if (id >= NVML_CLOCK_ID_COUNT) return NVML_ERROR_INVALID_ARGUMENT;
  return give_clock(device, type, clock);
}
NVML_ENTRY(nvmlDeviceGetSupportedMemoryClocks)
(nvmlDevice_t device, unsigned int* count, unsigned int* clocks) {
  NVML_DEVICE(device);
  NVML_NOT_NULL(count);
  const bool enough = *count >= 1 && clocks;
  *count = 1;
  if (!enough) return NVML_ERROR_INSUFFICIENT_SIZE;
  return give_clock(device, NVML_CLOCK_MEM, clocks);
}
NVML_ENTRY(nvmlDeviceGetSupportedGraphicsClocks)
(nvmlDevice_t device, unsigned int, unsigned int* count, unsigned int* clocks) {
  NVML_DEVICE(device);
  NVML_NOT_NULL(count);
  const bool enough = *count >= 1 && clocks;
  *count = 1;
  if (!enough) return NVML_ERROR_INSUFFICIENT_SIZE;
  return give_clock(device, NVML_CLOCK_GRAPHICS, clocks);
}

NVML_ENTRY(nvmlDeviceGetPerformanceState)(nvmlDevice_t device, nvmlPstates_t* state) {
  return give(device, state, [](const abi::CardDesc&) { return NVML_PSTATE_0; });
}
NVML_ENTRY(nvmlDeviceGetPowerState)(nvmlDevice_t device, nvmlPstates_t* state) {
  return give(device, state, [](const abi::CardDesc&) { return NVML_PSTATE_0; });
}
NVML_ENTRY(nvmlDeviceGetCurrentClocksEventReasons)
(nvmlDevice_t device, unsigned long long* reasons) {
  return give(device, reasons, [](const abi::CardDesc&) { return nvmlClocksEventReasonGpuIdle; });
}
NVML_ENTRY(nvmlDeviceGetCurrentClocksThrottleReasons)
(nvmlDevice_t device, unsigned long long* reasons) {
  return give(device, reasons, [](const abi::CardDesc&) { return nvmlClocksEventReasonGpuIdle; });
}
NVML_ENTRY(nvmlDeviceGetSupportedClocksEventReasons)
(nvmlDevice_t device, unsigned long long* reasons) {
  return give(device, reasons, [](const abi::CardDesc&) { return nvmlClocksEventReasonGpuIdle; });
}
NVML_ENTRY(nvmlDeviceGetSupportedClocksThrottleReasons)
(nvmlDevice_t device, unsigned long long* reasons) {
  return give(device, reasons, [](const abi::CardDesc&) { return nvmlClocksEventReasonGpuIdle; });
}
