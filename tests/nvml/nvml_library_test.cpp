// The virtual NVML as programs load it: every function of nvml.h is there, and the answers come
// from the session.
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <nvml.h>

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <regex>
#include <set>
#include <sstream>

#include "abi/session.h"
#include "abi/session_locks.h"
#include "cards/catalogue.h"

namespace tonnage::nvml {
namespace {

constexpr char kLibrary[] = TONNAGE_BINARY_DIR "/lib/vgpu/libnvidia-ml.so.1";

// A session file of the named cards, in the environment. The library keeps the first session it
// maps for the life of a process, so each test runs in a process of its own (in_child).
class FakeSession {
 public:
  explicit FakeSession(const std::vector<std::string>& cards, uint32_t flags = 0)
      : session_(std::make_unique<abi::Session>()) {
    std::memset(static_cast<void*>(session_.get()), 0, sizeof(abi::Session));
    session_->magic = abi::kSessionMagic;
    session_->version = abi::kSessionVersion;
    session_->struct_bytes = sizeof(abi::Session);
    session_->device_count = static_cast<int32_t>(cards.size());
    session_->flags = flags;
    for (size_t i = 0; i < cards.size(); ++i)
      session_->devices[i] = cards::to_desc(*cards::find_card(cards[i]), static_cast<int>(i));
  }
  abi::Session& operator*() { return *session_; }
  abi::Session* operator->() { return session_.get(); }
  void write() {
    char path[] = "/tmp/nvml_test_XXXXXX";
    const int fd = mkstemp(path);
    ASSERT_GE(fd, 0);
    ASSERT_EQ(::write(fd, session_.get(), sizeof(abi::Session)),
              static_cast<ssize_t>(sizeof(abi::Session)));
    close(fd);
    path_ = path;
    setenv("TONNAGE_SESSION", path, 1);
  }
  ~FakeSession() {
    if (!path_.empty()) unlink(path_.c_str());
  }

 private:
  std::unique_ptr<abi::Session> session_;
  std::string path_;
};

// A process that lives in a slot of the session.
class Lives {
 public:
  explicit Lives(int slot) {
    EXPECT_TRUE(locks_.open(getenv("TONNAGE_SESSION")));
    EXPECT_TRUE(locks_.hold(slot));
  }
  ~Lives() { locks_.close(); }

 private:
  abi::SessionLocks locks_;
};

template <class F>
F* function(const char* name) {
  static void* library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    ADD_FAILURE() << dlerror();
    std::abort();
  }
  void* found = dlsym(library, name);
  if (!found) {
    ADD_FAILURE() << name;
    std::abort();
  }
  return reinterpret_cast<F*>(found);
}
#define NVML(name) function<decltype(name)>(#name)

// Runs the body in a forked child; its failed expectations become one of the parent's.
void in_child(const std::function<void()>& body) {
  const auto run = [&body] {
    body();
    std::_Exit(::testing::Test::HasFailure() ? 1 : 0);
  };
  EXPECT_EXIT(run(), ::testing::ExitedWithCode(0), "");
}

std::string text_of(nvmlReturn_t (*ask)(nvmlDevice_t, char*, unsigned int), nvmlDevice_t device) {
  char text[128] = "";
  EXPECT_EQ(ask(device, text, sizeof text), NVML_SUCCESS);
  return text;
}

nvmlDevice_t device_at(unsigned int index) {
  nvmlDevice_t device = nullptr;
  EXPECT_EQ(NVML(nvmlDeviceGetHandleByIndex_v2)(index, &device), NVML_SUCCESS);
  return device;
}

TEST(NvmlLibrary, ExportsEveryFunctionOfTheHeader) {
  std::ifstream header(TONNAGE_CUDA_INCLUDE "/nvml.h");
  ASSERT_TRUE(header) << "set TONNAGE_CUDA_INCLUDE";
  std::stringstream text;
  text << header.rdbuf();
  const std::string content = text.str();
  const std::regex declaration("DECLDIR\\s+(?:char\\s*\\*\\s*)?(nvml[A-Za-z0-9_]+)\\s*\\(");
  std::set<std::string> names;
  for (std::sregex_iterator at(content.begin(), content.end(), declaration), end; at != end; ++at)
    names.insert((*at)[1]);
  EXPECT_GT(names.size(), 400u);
  void* library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << dlerror();
  for (const std::string& name : names) EXPECT_NE(dlsym(library, name.c_str()), nullptr) << name;
  EXPECT_EQ(dlsym(library, "tonnage_nvml_table"), nullptr);
}

TEST(NvmlLibrary, SaysThatThereIsNoDriverWithoutASession) {
  in_child([] {
    unsetenv("TONNAGE_SESSION");
    EXPECT_EQ(NVML(nvmlInit_v2)(), NVML_ERROR_DRIVER_NOT_LOADED);
    unsigned int count = 7;
    EXPECT_EQ(NVML(nvmlDeviceGetCount_v2)(&count), NVML_ERROR_UNINITIALIZED);
    setenv("TONNAGE_SESSION", "/dev/null", 1);
    EXPECT_EQ(NVML(nvmlInit_v2)(), NVML_ERROR_DRIVER_NOT_LOADED);
    EXPECT_STREQ(NVML(nvmlErrorString)(NVML_ERROR_DRIVER_NOT_LOADED), "Driver Not Loaded");
  });
}

TEST(NvmlLibrary, RefusesASessionOfAnotherBuild) {
  in_child([] {
    FakeSession session({"h200"});
    session->struct_bytes -= 8;
    session.write();
    EXPECT_EQ(NVML(nvmlInit_v2)(), NVML_ERROR_DRIVER_NOT_LOADED);
  });
}

TEST(NvmlLibrary, CountsInitialisations) {
  in_child([] {
    FakeSession session({"h200"});
    session.write();
    EXPECT_EQ(NVML(nvmlShutdown)(), NVML_ERROR_UNINITIALIZED);
    EXPECT_EQ(NVML(nvmlInit_v2)(), NVML_SUCCESS);
    EXPECT_EQ(NVML(nvmlInitWithFlags)(0), NVML_SUCCESS);
    EXPECT_EQ(NVML(nvmlShutdown)(), NVML_SUCCESS);
    unsigned int count = 0;
    EXPECT_EQ(NVML(nvmlDeviceGetCount_v2)(&count), NVML_SUCCESS);
    EXPECT_EQ(count, 1u);
    EXPECT_EQ(NVML(nvmlShutdown)(), NVML_SUCCESS);
    EXPECT_EQ(NVML(nvmlDeviceGetCount_v2)(&count), NVML_ERROR_UNINITIALIZED);
  });
}

TEST(NvmlLibrary, NamesAndFindsDevices) {
  in_child([] {
    FakeSession session({"h200", "rtx 3060"});
    session.write();
    ASSERT_EQ(NVML(nvmlInit_v2)(), NVML_SUCCESS);
    const nvmlDevice_t first = device_at(0);
    const nvmlDevice_t second = device_at(1);
    EXPECT_EQ(text_of(NVML(nvmlDeviceGetName), first), "NVIDIA H200");
    EXPECT_EQ(text_of(NVML(nvmlDeviceGetName), second), "NVIDIA GeForce RTX 3060");
    char tight[4];
    EXPECT_EQ(NVML(nvmlDeviceGetName)(first, tight, sizeof tight), NVML_ERROR_INSUFFICIENT_SIZE);
    const std::string uuid = text_of(NVML(nvmlDeviceGetUUID), second);
    EXPECT_EQ(uuid.size(), 40u);
    EXPECT_NE(uuid, text_of(NVML(nvmlDeviceGetUUID), first));
    nvmlDevice_t found = nullptr;
    EXPECT_EQ(NVML(nvmlDeviceGetHandleByUUID)(uuid.c_str(), &found), NVML_SUCCESS);
    EXPECT_EQ(found, second);
    EXPECT_EQ(NVML(nvmlDeviceGetHandleByUUID)("GPU-00000000", &found), NVML_ERROR_NOT_FOUND);
    nvmlPciInfo_t pci;
    EXPECT_EQ(NVML(nvmlDeviceGetPciInfo_v3)(second, &pci), NVML_SUCCESS);
    EXPECT_STREQ(pci.busId, "00000000:00:07.0");
    EXPECT_STREQ(pci.busIdLegacy, "0000:00:07.0");
    for (const char* bus : {"00000000:00:07.0", "0000:00:07.0", "0:0:7", "00:07.0"}) {
      found = nullptr;
      EXPECT_EQ(NVML(nvmlDeviceGetHandleByPciBusId_v2)(bus, &found), NVML_SUCCESS) << bus;
      EXPECT_EQ(found, second) << bus;
    }
    EXPECT_EQ(NVML(nvmlDeviceGetHandleByPciBusId_v2)("rubbish", &found),
              NVML_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(NVML(nvmlDeviceGetHandleByIndex_v2)(2, &found), NVML_ERROR_INVALID_ARGUMENT);
    nvmlBrandType_t brand;
    EXPECT_EQ(NVML(nvmlDeviceGetBrand)(second, &brand), NVML_SUCCESS);
    EXPECT_EQ(brand, NVML_BRAND_GEFORCE);
    int major = 0;
    int minor = 0;
    EXPECT_EQ(NVML(nvmlDeviceGetCudaComputeCapability)(second, &major, &minor), NVML_SUCCESS);
    EXPECT_EQ(major * 10 + minor, 86);
    EXPECT_EQ(NVML(nvmlDeviceGetName)(reinterpret_cast<nvmlDevice_t>(0x1234), tight, sizeof tight),
              NVML_ERROR_INVALID_ARGUMENT);
    int cuda = 0;
    EXPECT_EQ(NVML(nvmlSystemGetCudaDriverVersion_v2)(&cuda), NVML_SUCCESS);
    EXPECT_EQ(cuda, 13000);
  });
}

TEST(NvmlLibrary, MemoryIsTheSessionsAccount) {
  in_child([] {
    FakeSession session({"h200"});
    for (int slot : {0, 2, 4}) {
      session->processes[slot].pid = 1;
      session->processes[slot].used_bytes[0] = slot == 2 ? 7ull << 30 : 5ull << 29;
    }
    session->slots_used = 5;
    session.write();
    const Lives first_process(0), second_process(4);  // that of slot 2 is dead
    ASSERT_EQ(NVML(nvmlInit_v2)(), NVML_SUCCESS);
    nvmlMemory_t first{};
    EXPECT_EQ(NVML(nvmlDeviceGetMemoryInfo)(device_at(0), &first), NVML_SUCCESS);
    EXPECT_EQ(first.total, 150754820096ull);
    EXPECT_EQ(first.free, 150109880320ull - (5ull << 30));
    EXPECT_EQ(first.used, first.total - first.free);
    nvmlMemory_v2_t second{};
    EXPECT_EQ(NVML(nvmlDeviceGetMemoryInfo_v2)(device_at(0), &second),
              NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    second.version = nvmlMemory_v2;
    EXPECT_EQ(NVML(nvmlDeviceGetMemoryInfo_v2)(device_at(0), &second), NVML_SUCCESS);
    EXPECT_EQ(second.used, 5ull << 30);
    EXPECT_EQ(second.reserved, 150754820096ull - 150109880320ull);
    EXPECT_EQ(second.total, second.used + second.free + second.reserved);
  });
}

TEST(NvmlLibrary, ListsTheProcessesThatHoldMemory) {
  in_child([] {
    FakeSession session({"h200", "h200"});
    session->processes[3].pid = getpid();
    session->processes[3].used_bytes[1] = 123456;
    session->processes[4].pid = getppid();
    session->processes[4].used_bytes[1] = 99;
    session->processes[5].pid = 0x3ffffff0;  // long dead
    session->processes[5].used_bytes[1] = 77;
    session->slots_used = 6;
    session.write();
    const Lives other(4);
    ASSERT_EQ(NVML(nvmlInit_v2)(), NVML_SUCCESS);
    unsigned int count = 0;
    EXPECT_EQ(NVML(nvmlDeviceGetComputeRunningProcesses_v3)(device_at(0), &count, nullptr),
              NVML_SUCCESS);
    EXPECT_EQ(count, 0u);
    EXPECT_EQ(NVML(nvmlDeviceGetComputeRunningProcesses_v3)(device_at(1), &count, nullptr),
              NVML_ERROR_INSUFFICIENT_SIZE);
    EXPECT_EQ(count, 2u);
    nvmlProcessInfo_t infos[4];
    count = 4;
    EXPECT_EQ(NVML(nvmlDeviceGetComputeRunningProcesses_v3)(device_at(1), &count, infos),
              NVML_SUCCESS);
    EXPECT_EQ(count, 2u);
    EXPECT_EQ(infos[0].pid, static_cast<unsigned int>(getpid()));
    EXPECT_EQ(infos[0].usedGpuMemory, 123456u);
    EXPECT_EQ(infos[0].gpuInstanceId, 0xFFFFFFFFu);
    nvmlProcessInfo_v1_t old[2];
    count = 2;
    EXPECT_EQ(NVML(nvmlDeviceGetComputeRunningProcesses)(device_at(1), &count, old), NVML_SUCCESS);
    EXPECT_EQ(old[1].usedGpuMemory, 99u);
    count = 1;
    EXPECT_EQ(NVML(nvmlDeviceGetComputeRunningProcesses)(device_at(1), &count, old),
              NVML_ERROR_INSUFFICIENT_SIZE);
    count = 2;
    EXPECT_EQ(NVML(nvmlDeviceGetGraphicsRunningProcesses_v3)(device_at(1), &count, infos),
              NVML_SUCCESS);
    EXPECT_EQ(count, 0u);
    char name[256];
    EXPECT_EQ(
        NVML(nvmlSystemGetProcessName)(static_cast<unsigned int>(getpid()), name, sizeof name),
        NVML_SUCCESS);
    EXPECT_NE(std::string(name).size(), 0u);
  });
}

TEST(NvmlLibrary, SlicesHangUnderAWholeCard) {
  in_child([] {
    FakeSession session({"h100 mig 1g.10gb", "h100"});
    session.write();
    ASSERT_EQ(NVML(nvmlInit_v2)(), NVML_SUCCESS);
    unsigned int current = 9;
    unsigned int pending = 9;
    EXPECT_EQ(NVML(nvmlDeviceGetMigMode)(device_at(0), &current, &pending), NVML_SUCCESS);
    EXPECT_EQ(current, 1u);
    EXPECT_EQ(NVML(nvmlDeviceGetMigMode)(device_at(1), &current, &pending), NVML_SUCCESS);
    EXPECT_EQ(current, 0u);
    nvmlDevice_t slice = nullptr;
    EXPECT_EQ(NVML(nvmlDeviceGetMigDeviceHandleByIndex)(device_at(0), 0, &slice), NVML_SUCCESS);
    EXPECT_EQ(NVML(nvmlDeviceGetMigDeviceHandleByIndex)(device_at(0), 1, &slice),
              NVML_ERROR_NOT_FOUND);
    EXPECT_EQ(NVML(nvmlDeviceGetMigDeviceHandleByIndex)(device_at(1), 0, &slice),
              NVML_ERROR_NOT_FOUND);
    EXPECT_EQ(text_of(NVML(nvmlDeviceGetName), device_at(0)), "NVIDIA H100 80GB HBM3");
    EXPECT_EQ(text_of(NVML(nvmlDeviceGetName), slice), "NVIDIA H100 80GB HBM3 MIG 1g.10gb");
    EXPECT_EQ(text_of(NVML(nvmlDeviceGetUUID), slice).substr(0, 4), "MIG-");
    nvmlDeviceAttributes_t attributes{};
    EXPECT_EQ(NVML(nvmlDeviceGetAttributes_v2)(slice, &attributes), NVML_SUCCESS);
    EXPECT_EQ(attributes.multiprocessorCount, 16u);
    nvmlDevice_t whole = nullptr;
    EXPECT_EQ(NVML(nvmlDeviceGetDeviceHandleFromMigDeviceHandle)(slice, &whole), NVML_SUCCESS);
    EXPECT_EQ(whole, device_at(0));
    unsigned int is_slice = 0;
    EXPECT_EQ(NVML(nvmlDeviceIsMigDeviceHandle)(slice, &is_slice), NVML_SUCCESS);
    EXPECT_EQ(is_slice, 1u);
  });
}

TEST(NvmlLibrary, KnowsItsLinks) {
  in_child([] {
    FakeSession session({"h100", "h100", "rtx 4090", "rtx 4090"});
    session.write();
    ASSERT_EQ(NVML(nvmlInit_v2)(), NVML_SUCCESS);
    nvmlEnableState_t state;
    for (unsigned int link = 0; link < 18; ++link) {
      EXPECT_EQ(NVML(nvmlDeviceGetNvLinkState)(device_at(0), link, &state), NVML_SUCCESS) << link;
      EXPECT_EQ(state, NVML_FEATURE_ENABLED);
    }
    EXPECT_EQ(NVML(nvmlDeviceGetNvLinkState)(device_at(0), 18, &state),
              NVML_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(NVML(nvmlDeviceGetNvLinkState)(device_at(2), 0, &state), NVML_ERROR_NOT_SUPPORTED);
    nvmlPciInfo_t remote;
    EXPECT_EQ(NVML(nvmlDeviceGetNvLinkRemotePciInfo_v2)(device_at(0), 3, &remote), NVML_SUCCESS);
    EXPECT_STREQ(remote.busId, "FFFFFFFF:FF:FF.0");
    nvmlGpuFabricInfoV_t fabric{};
    EXPECT_EQ(NVML(nvmlDeviceGetGpuFabricInfoV)(device_at(0), &fabric),
              NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    fabric.version = nvmlGpuFabricInfo_v3;
    EXPECT_EQ(NVML(nvmlDeviceGetGpuFabricInfoV)(device_at(0), &fabric), NVML_SUCCESS);
    EXPECT_EQ(fabric.state, NVML_GPU_FABRIC_STATE_COMPLETED);
    EXPECT_EQ(NVML(nvmlDeviceGetGpuFabricInfoV)(device_at(2), &fabric), NVML_ERROR_NOT_SUPPORTED);
    nvmlGpuP2PStatus_t status;
    EXPECT_EQ(NVML(nvmlDeviceGetP2PStatus)(device_at(0), device_at(1), NVML_P2P_CAPS_INDEX_NVLINK,
                                           &status),
              NVML_SUCCESS);
    EXPECT_EQ(status, NVML_P2P_STATUS_OK);
    EXPECT_EQ(
        NVML(nvmlDeviceGetP2PStatus)(device_at(2), device_at(3), NVML_P2P_CAPS_INDEX_READ, &status),
        NVML_SUCCESS);
    EXPECT_EQ(status, NVML_P2P_STATUS_NOT_SUPPORTED);
    EXPECT_EQ(
        NVML(nvmlDeviceGetP2PStatus)(device_at(0), device_at(0), NVML_P2P_CAPS_INDEX_READ, &status),
        NVML_SUCCESS);
    EXPECT_EQ(status, NVML_P2P_STATUS_OK);
    nvmlFieldValue_t fields[3] = {};
    fields[0].fieldId = NVML_FI_DEV_NVLINK_LINK_COUNT;
    fields[1].fieldId = NVML_FI_DEV_NVLINK_GET_SPEED;
    fields[2].fieldId = 9999;
    EXPECT_EQ(NVML(nvmlDeviceGetFieldValues)(device_at(0), 3, fields), NVML_SUCCESS);
    EXPECT_EQ(fields[0].value.uiVal, 18u);
    EXPECT_EQ(fields[1].value.uiVal, 26562u);
    EXPECT_EQ(fields[2].nvmlReturn, NVML_ERROR_NOT_SUPPORTED);
    unsigned int generation = 0;
    unsigned int lanes = 0;
    EXPECT_EQ(NVML(nvmlDeviceGetMaxPcieLinkGeneration)(device_at(2), &generation), NVML_SUCCESS);
    EXPECT_EQ(NVML(nvmlDeviceGetMaxPcieLinkWidth)(device_at(2), &lanes), NVML_SUCCESS);
    EXPECT_EQ(generation, 4u);
    EXPECT_EQ(lanes, 16u);
  });
}

TEST(NvmlLibrary, ACardAloneHasNoLinks) {
  in_child([] {
    FakeSession session({"h200"});
    session.write();
    ASSERT_EQ(NVML(nvmlInit_v2)(), NVML_SUCCESS);
    nvmlEnableState_t state;
    EXPECT_EQ(NVML(nvmlDeviceGetNvLinkState)(device_at(0), 0, &state), NVML_ERROR_NOT_SUPPORTED);
    nvmlFieldValue_t field = {};
    field.fieldId = NVML_FI_DEV_NVLINK_LINK_COUNT;
    EXPECT_EQ(NVML(nvmlDeviceGetFieldValues)(device_at(0), 1, &field), NVML_SUCCESS);
    EXPECT_EQ(field.nvmlReturn, NVML_ERROR_NOT_SUPPORTED);
  });
}

TEST(NvmlLibrary, BridgedNeighboursReachEachOther) {
  in_child([] {
    FakeSession session({"rtx a6000", "rtx a6000", "rtx a6000"});
    session.write();
    ASSERT_EQ(NVML(nvmlInit_v2)(), NVML_SUCCESS);
    nvmlPciInfo_t remote;
    nvmlPciInfo_t own;
    EXPECT_EQ(NVML(nvmlDeviceGetNvLinkRemotePciInfo_v2)(device_at(1), 0, &remote), NVML_SUCCESS);
    EXPECT_EQ(NVML(nvmlDeviceGetPciInfo_v3)(device_at(0), &own), NVML_SUCCESS);
    EXPECT_STREQ(remote.busId, own.busId);
    EXPECT_EQ(NVML(nvmlDeviceGetNvLinkRemotePciInfo_v2)(device_at(2), 0, &remote),
              NVML_ERROR_NOT_SUPPORTED);
    nvmlGpuP2PStatus_t status;
    EXPECT_EQ(
        NVML(nvmlDeviceGetP2PStatus)(device_at(1), device_at(2), NVML_P2P_CAPS_INDEX_READ, &status),
        NVML_SUCCESS);
    EXPECT_EQ(status, NVML_P2P_STATUS_OK);  // over PCIe
    EXPECT_EQ(NVML(nvmlDeviceGetP2PStatus)(device_at(1), device_at(2), NVML_P2P_CAPS_INDEX_NVLINK,
                                           &status),
              NVML_SUCCESS);
    EXPECT_EQ(status, NVML_P2P_STATUS_NOT_SUPPORTED);
  });
}

TEST(NvmlLibrary, AnswersWhatMonitorsLog) {
  in_child([] {
    FakeSession session({"h200"});
    session.write();
    ASSERT_EQ(NVML(nvmlInit_v2)(), NVML_SUCCESS);
    const nvmlDevice_t device = device_at(0);
    unsigned int value = 0;
    EXPECT_EQ(NVML(nvmlDeviceGetPowerManagementLimit)(device, &value), NVML_SUCCESS);
    EXPECT_EQ(value, 700000u);
    EXPECT_EQ(NVML(nvmlDeviceGetPowerUsage)(device, &value), NVML_SUCCESS);
    EXPECT_GT(value, 0u);
    EXPECT_EQ(NVML(nvmlDeviceGetClockInfo)(device, NVML_CLOCK_MEM, &value), NVML_SUCCESS);
    EXPECT_EQ(value, 3201u);
    EXPECT_EQ(NVML(nvmlDeviceGetMaxClockInfo)(device, NVML_CLOCK_SM, &value), NVML_SUCCESS);
    EXPECT_EQ(value, 1980u);
    nvmlUtilization_t utilisation = {5, 5};
    EXPECT_EQ(NVML(nvmlDeviceGetUtilizationRates)(device, &utilisation), NVML_SUCCESS);
    EXPECT_EQ(utilisation.gpu, 0u);
    EXPECT_EQ(NVML(nvmlDeviceGetNumGpuCores)(device, &value), NVML_SUCCESS);
    EXPECT_EQ(value, 16896u);
    // A function without a virtual answer says so instead of succeeding with rubbish.
    EXPECT_EQ(NVML(nvmlDeviceGetEncoderCapacity)(device, NVML_ENCODER_QUERY_H264, &value),
              NVML_ERROR_NOT_SUPPORTED);
  });
}

TEST(NvmlLibrary, PassingThroughWithoutARealLibraryFails) {
  in_child([] {
    FakeSession session({"h200"}, abi::kFlagPassThrough);
    session.write();
    setenv("TONNAGE_REAL_CUDA", "/nonexistent/libcuda.so.1", 1);
    const nvmlReturn_t result = NVML(nvmlInit_v2)();
    // A machine with a real driver passes through to it.
    EXPECT_TRUE(result == NVML_ERROR_LIBRARY_NOT_FOUND || result == NVML_SUCCESS ||
                result == NVML_ERROR_DRIVER_NOT_LOADED);
  });
}

}  // namespace
}  // namespace tonnage::nvml
