// The one list of the driver's functions that are written by hand: name, what it needs, typed
// arguments. tools/gen_driver.py makes the C entry of each from it (driver/enter.h says how):
//   first parameter Driver*   the entry answers NOT_INITIALIZED before cuInit and in a forked child
//   first parameter Context*  and INVALID_CONTEXT where the thread has no current context
//   Device*                   a CUdevice there, INVALID_DEVICE if it is none; needs the driver
//   Stream*                   a CUstream there, INVALID_HANDLE if it is none; needs a context
// No exception leaves an entry. What is not in this list becomes a stub.
#pragma once

#include "driver/api.h"

namespace tonnage::driver {

struct Context;
class Device;
struct Driver;
struct Stream;

// --- Initialisation, version and devices (api/device.cpp) ---

CUresult cuInit(unsigned int flags);
CUresult cuDriverGetVersion(int* version);
CUresult cuDeviceGetCount(Driver*, int* count);
CUresult cuDeviceGet(Driver*, CUdevice* device, int ordinal);
CUresult cuDeviceGetName(char* name, int length, Device* device);
CUresult cuDeviceTotalMem_v2(size_t* bytes, Device* device);
CUresult cuDeviceGetUuid(CUuuid* uuid, Device* device);
CUresult cuDeviceGetUuid_v2(CUuuid* uuid, Device* handle);
CUresult cuDeviceGetLuid(char* luid, unsigned int* deviceNodeMask, CUdevice dev);
CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, Device* device);
CUresult cuDeviceComputeCapability(int* major, int* minor, Device* device);
CUresult cuDeviceGetProperties(CUdevprop* properties, Device* device);
CUresult cuDeviceGetPCIBusId(char* text, int length, Device* device);
CUresult cuDeviceGetByPCIBusId(Driver*, CUdevice* handle, const char* text);
CUresult cuDeviceGetTexture1DLinearMaxWidth(size_t* elements, CUarray_format format,
                                            unsigned channels, Device* device);
CUresult cuDeviceGetExecAffinitySupport(int* supported, CUexecAffinityType type, Device* device);
CUresult cuDeviceGetHostAtomicCapabilities(unsigned int* capabilities,
                                           const CUatomicOperation* operations, unsigned int count,
                                           Device* device);
CUresult cuDeviceGetNvSciSyncAttributes(void* nvSciSyncAttrList, CUdevice dev, int flags);

// --- Contexts (api/context.cpp) ---

CUresult cuDevicePrimaryCtxRetain(Driver*, CUcontext* out, Device* device);
CUresult cuDevicePrimaryCtxRelease_v2(Driver*, Device* device);
CUresult cuDevicePrimaryCtxRelease(Device* handle);
CUresult cuDevicePrimaryCtxSetFlags_v2(Device* device, unsigned int flags);
CUresult cuDevicePrimaryCtxSetFlags(Device* handle, unsigned int flags);
CUresult cuDevicePrimaryCtxGetState(Driver*, Device* device, unsigned int* flags, int* active);
CUresult cuDevicePrimaryCtxReset_v2(Driver*, Device* device);
CUresult cuDevicePrimaryCtxReset(Device* handle);
CUresult cuCtxCreate_v2(Driver*, CUcontext* out, unsigned int flags, Device* device);
CUresult cuCtxCreate(CUcontext* out, unsigned int flags, Device* handle);
CUresult cuCtxCreate_v3(CUcontext* out, CUexecAffinityParam* paramsArray, int numParams,
                        unsigned int flags, Device* handle);
CUresult cuCtxCreate_v4(CUcontext* out, CUctxCreateParams* params, unsigned int flags,
                        Device* handle);
CUresult cuCtxDestroy_v2(Driver*, CUcontext handle);
CUresult cuCtxDestroy(Driver*, CUcontext handle);
CUresult cuCtxAttach(Context*, CUcontext* out, unsigned int flags);
CUresult cuCtxDetach(Driver*, CUcontext handle);
CUresult cuCtxPushCurrent_v2(Driver*, CUcontext handle);
CUresult cuCtxPushCurrent(Driver*, CUcontext handle);
CUresult cuCtxPopCurrent_v2(Driver*, CUcontext* out);
CUresult cuCtxPopCurrent(Driver*, CUcontext* out);
CUresult cuCtxSetCurrent(Driver*, CUcontext handle);
CUresult cuCtxGetCurrent(Driver*, CUcontext* out);
CUresult cuCtxGetDevice(Context*, CUdevice* device);
CUresult cuCtxGetDevice_v2(Driver*, CUdevice* device, CUcontext handle);
CUresult cuCtxGetFlags(Context*, unsigned int* flags);
CUresult cuCtxSetFlags(Context*, unsigned int flags);
CUresult cuCtxGetId(Context*, CUcontext handle, unsigned long long* id);
CUresult cuCtxGetApiVersion(Context*, CUcontext handle, unsigned int* version);
CUresult cuCtxSynchronize(Context*);
CUresult cuCtxSynchronize_v2(Driver*, CUcontext handle);
CUresult cuCtxGetStreamPriorityRange(Context*, int* least, int* greatest);
CUresult cuCtxGetLimit(Context*, size_t* value, CUlimit limit);
CUresult cuCtxSetLimit(Context*, CUlimit limit, size_t value);
CUresult cuCtxResetPersistingL2Cache(Context*);
CUresult cuCtxGetCacheConfig(Context*, CUfunc_cache* config);
CUresult cuCtxSetCacheConfig(Context*, CUfunc_cache config);
CUresult cuCtxGetSharedMemConfig(Context*, CUsharedconfig* config);
CUresult cuCtxSetSharedMemConfig(Context*, CUsharedconfig config);
CUresult cuCtxGetExecAffinity(Context*, CUexecAffinityParam* affinity, CUexecAffinityType type);

// --- Modules, libraries and kernels (api/module.cpp) ---

CUresult cuModuleLoadData(Context*, CUmodule* out, const void* image);
CUresult cuModuleLoadDataEx(Context*, CUmodule* out, const void* image, unsigned int count,
                            CUjit_option* options, void** values);
CUresult cuModuleLoadFatBinary(Context*, CUmodule* out, const void* image);
CUresult cuModuleLoad(Context*, CUmodule* out, const char* path);
CUresult cuModuleUnload(Driver*, CUmodule handle);
CUresult cuModuleGetLoadingMode(Driver*, CUmoduleLoadingMode* mode);
CUresult cuModuleGetFunction(Driver*, CUfunction* out, CUmodule handle, const char* name);
CUresult cuModuleGetFunctionCount(Driver*, unsigned int* count, CUmodule handle);
CUresult cuModuleEnumerateFunctions(Driver*, CUfunction* functions, unsigned int count,
                                    CUmodule handle);
CUresult cuModuleGetGlobal_v2(Context*, CUdeviceptr* address, size_t* bytes, CUmodule handle,
                              const char* name);
CUresult cuLibraryLoadData(Driver*, CUlibrary* out, const void* code, CUjit_option* jitOptions,
                           void** jitOptionsValues, unsigned int numJitOptions,
                           CUlibraryOption* options, void** values, unsigned int option_count);
CUresult cuLibraryLoadFromFile(Driver*, CUlibrary* out, const char* path, CUjit_option* jit_options,
                               void** jit_values, unsigned int jit_count,
                               CUlibraryOption* libraryOptions, void** libraryOptionValues,
                               unsigned int numLibraryOptions);
CUresult cuLibraryUnload(Driver*, CUlibrary handle);
CUresult cuLibraryGetKernel(Driver*, CUkernel* out, CUlibrary handle, const char* name);
CUresult cuLibraryGetKernelCount(Driver*, unsigned int* count, CUlibrary handle);
CUresult cuLibraryEnumerateKernels(Driver*, CUkernel* kernels, unsigned int count,
                                   CUlibrary handle);
CUresult cuLibraryGetModule(Context*, CUmodule* out, CUlibrary handle);
CUresult cuLibraryGetGlobal(Context*, CUdeviceptr* address, size_t* bytes, CUlibrary handle,
                            const char* name);
CUresult cuLibraryGetManaged(Driver*, CUdeviceptr* dptr, size_t* bytes, CUlibrary handle,
                             const char* name);
CUresult cuLibraryGetUnifiedFunction(Driver*, void** fptr, CUlibrary handle, const char* symbol);
CUresult cuKernelGetFunction(Context*, CUfunction* out, CUkernel handle);
CUresult cuKernelGetLibrary(Driver*, CUlibrary* out, CUkernel handle);
CUresult cuFuncGetModule(Driver*, CUmodule* out, CUfunction handle);
CUresult cuFuncGetName(Driver*, const char** name, CUfunction handle);
CUresult cuKernelGetName(Driver*, const char** name, CUkernel handle);
CUresult cuFuncGetParamInfo(Driver*, CUfunction handle, size_t index, size_t* offset, size_t* size);
CUresult cuKernelGetParamInfo(Driver*, CUkernel handle, size_t index, size_t* offset, size_t* size);
CUresult cuFuncIsLoaded(Driver*, CUfunctionLoadingState* state, CUfunction handle);
CUresult cuFuncLoad(Driver*, CUfunction handle);

// --- Launches, kernel attributes and occupancy (api/launch.cpp) ---

CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y,
                        unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                        unsigned int block_z, unsigned int shared_bytes, Stream* stream,
                        void** params, void** extra);
CUresult cuLaunchKernelEx(Context*, const CUlaunchConfig* config, CUfunction function,
                          void** params, void** extra);
CUresult cuLaunchCooperativeKernel(Context*, CUfunction function, unsigned int grid_x,
                                   unsigned int grid_y, unsigned int grid_z, unsigned int block_x,
                                   unsigned int block_y, unsigned int block_z,
                                   unsigned int shared_bytes, Stream* stream, void** params);
CUresult cuFuncSetBlockShape(Driver*, CUfunction handle, int x, int y, int z);
CUresult cuFuncSetSharedSize(Driver*, CUfunction handle, unsigned int bytes);
CUresult cuLaunchGridAsync(CUfunction handle, int width, int height, Stream* stream);
CUresult cuLaunchGrid(Context*, CUfunction function, int width, int height);
CUresult cuLaunch(Context*, CUfunction function);
CUresult cuFuncGetAttribute(Driver*, int* value, CUfunction_attribute attribute, CUfunction handle);
CUresult cuKernelGetAttribute(Driver*, int* value, CUfunction_attribute attribute, CUkernel kernel,
                              CUdevice dev);
CUresult cuFuncSetAttribute(Driver*, CUfunction handle, CUfunction_attribute attribute, int value);
CUresult cuKernelSetAttribute(Driver*, CUfunction_attribute attribute, int value, CUkernel kernel,
                              CUdevice dev);
CUresult cuFuncSetCacheConfig(Driver*, CUfunction handle, CUfunc_cache config);
CUresult cuKernelSetCacheConfig(Driver*, CUkernel kernel, CUfunc_cache config, CUdevice dev);
CUresult cuFuncSetSharedMemConfig(Driver*, CUfunction handle, CUsharedconfig config);
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(Driver*, int* blocks, CUfunction handle,
                                                     int threads, size_t shared_bytes);
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(Driver*, int* blocks,
                                                              CUfunction function, int threads,
                                                              size_t shared_bytes,
                                                              unsigned int flags);
CUresult cuOccupancyAvailableDynamicSMemPerBlock(Driver*, size_t* bytes, CUfunction handle,
                                                 int blocks, int threads);
CUresult cuOccupancyMaxPotentialBlockSize(Driver*, int* min_grid, int* threads, CUfunction handle,
                                          CUoccupancyB2DSize shared_for_block, size_t shared_bytes,
                                          int limit);
CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(Driver*, int* min_grid, int* threads,
                                                   CUfunction function,
                                                   CUoccupancyB2DSize shared_for_block,
                                                   size_t shared_bytes, int limit,
                                                   unsigned int flags);
CUresult cuOccupancyMaxActiveClusters(Driver*, int* clusters, CUfunction handle,
                                      const CUlaunchConfig* config);
CUresult cuOccupancyMaxPotentialClusterSize(Driver*, int* size, CUfunction handle,
                                            const CUlaunchConfig* config);

// --- Memory (api/memory.cpp) ---

CUresult cuMemGetInfo_v2(Context*, size_t* free_bytes, size_t* total_bytes);
CUresult cuMemAlloc_v2(Context*, CUdeviceptr* out, size_t bytes);
CUresult cuMemAllocPitch_v2(Context*, CUdeviceptr* out, size_t* pitch, size_t width, size_t height,
                            unsigned int element_bytes);
CUresult cuMemFree_v2(Driver*, CUdeviceptr address);
CUresult cuMemGetAddressRange_v2(Driver*, CUdeviceptr* base, size_t* size, CUdeviceptr address);
CUresult cuMemHostAlloc(Context*, void** out, size_t bytes, unsigned int flags);
CUresult cuMemAllocHost_v2(Context*, void** out, size_t bytes);
CUresult cuMemFreeHost(Driver*, void* pointer);
CUresult cuMemHostRegister_v2(Context*, void* pointer, size_t bytes, unsigned int flags);
CUresult cuMemHostRegister(Context*, void* pointer, size_t bytes, unsigned int flags);
CUresult cuMemHostUnregister(Driver*, void* pointer);
CUresult cuMemHostGetDevicePointer_v2(Driver*, CUdeviceptr* out, void* pointer, unsigned int flags);
CUresult cuMemHostGetFlags(Driver*, unsigned int* flags, void* pointer);
CUresult cuMemAllocManaged(Context*, CUdeviceptr* out, size_t bytes, unsigned int flags);
CUresult cuMemPrefetchAsync(Driver*, CUdeviceptr address, size_t count, CUdevice dstDevice,
                            CUstream hStream);
CUresult cuMemPrefetchAsync_v2(Driver*, CUdeviceptr address, size_t bytes, CUmemLocation location,
                               unsigned int flags, CUstream stream);
CUresult cuMemAdvise(Driver*, CUdeviceptr address, size_t count, CUmem_advise advice,
                     CUdevice device);
CUresult cuMemAdvise_v2(Driver*, CUdeviceptr address, size_t bytes, CUmem_advise advice,
                        CUmemLocation location);
CUresult cuMemRangeGetAttribute(Driver*, void* data, size_t data_bytes,
                                CUmem_range_attribute attribute, CUdeviceptr address, size_t count);
CUresult cuPointerGetAttribute(Driver*, void* data, CUpointer_attribute attribute,
                               CUdeviceptr pointer);
CUresult cuPointerGetAttributes(Driver*, unsigned int count, CUpointer_attribute* attributes,
                                void** data, CUdeviceptr pointer);
CUresult cuPointerSetAttribute(Driver*, const void* value, CUpointer_attribute attribute,
                               CUdeviceptr pointer);

// --- Copies and sets (api/copy.cpp) ---

CUresult cuMemcpy(Context*, CUdeviceptr dst, CUdeviceptr src, size_t n);
CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t n, Stream* stream);
CUresult cuMemcpyHtoD_v2(Context*, CUdeviceptr dst, const void* src, size_t n);
CUresult cuMemcpyDtoH_v2(Context*, void* dst, CUdeviceptr src, size_t n);
CUresult cuMemcpyDtoD_v2(Context*, CUdeviceptr dst, CUdeviceptr src, size_t n);
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void* src, size_t n, Stream* stream);
CUresult cuMemcpyDtoHAsync_v2(void* dst, CUdeviceptr src, size_t n, Stream* stream);
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dst, CUdeviceptr src, size_t n, Stream* stream);
CUresult cuMemcpyPeer(Context*, CUdeviceptr dst, CUcontext dstContext, CUdeviceptr src,
                      CUcontext srcContext, size_t n);
CUresult cuMemcpyPeerAsync(CUdeviceptr dst, CUcontext dstContext, CUdeviceptr src,
                           CUcontext srcContext, size_t n, Stream* stream);
CUresult cuMemcpyBatchAsync_v2(CUdeviceptr* dsts, CUdeviceptr* srcs, size_t* sizes, size_t count,
                               CUmemcpyAttributes* attrs, size_t* attrsIdxs, size_t numAttrs,
                               Stream* stream);
CUresult cuMemcpyBatchAsync(CUdeviceptr* dsts, CUdeviceptr* srcs, size_t* sizes, size_t count,
                            CUmemcpyAttributes* attributes, size_t* indices, size_t attribute_count,
                            size_t* fail_index, Stream* stream);
CUresult cuMemcpy2D_v2(Context*, const CUDA_MEMCPY2D* copy);
CUresult cuMemcpy2DUnaligned_v2(Context*, const CUDA_MEMCPY2D* copy);
CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D* copy, Stream* stream);
CUresult cuMemcpy3D_v2(Context*, const CUDA_MEMCPY3D* copy);
CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D* copy, Stream* stream);
CUresult cuMemcpy3DPeer(Context*, const CUDA_MEMCPY3D_PEER* copy);
CUresult cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER* copy, Stream* stream);
CUresult cuMemsetD8_v2(Context*, CUdeviceptr dst, unsigned char v, size_t n);
CUresult cuMemsetD16_v2(Context*, CUdeviceptr dst, unsigned short v, size_t n);
CUresult cuMemsetD32_v2(Context*, CUdeviceptr dst, unsigned int v, size_t n);
CUresult cuMemsetD8Async(CUdeviceptr dst, unsigned char v, size_t n, Stream* s);
CUresult cuMemsetD16Async(CUdeviceptr dst, unsigned short v, size_t n, Stream* s);
CUresult cuMemsetD32Async(CUdeviceptr dst, unsigned int v, size_t n, Stream* s);
CUresult cuMemsetD2D8_v2(Context*, CUdeviceptr dst, size_t pitch, unsigned char v, size_t w,
                         size_t h);
CUresult cuMemsetD2D16_v2(Context*, CUdeviceptr dst, size_t pitch, unsigned short v, size_t w,
                          size_t h);
CUresult cuMemsetD2D32_v2(Context*, CUdeviceptr dst, size_t pitch, unsigned int v, size_t w,
                          size_t h);
CUresult cuMemsetD2D8Async(CUdeviceptr dst, size_t pitch, unsigned char v, size_t w, size_t h,
                           Stream* s);
CUresult cuMemsetD2D16Async(CUdeviceptr dst, size_t pitch, unsigned short v, size_t w, size_t h,
                            Stream* s);
CUresult cuMemsetD2D32Async(CUdeviceptr dst, size_t pitch, unsigned int v, size_t w, size_t h,
                            Stream* s);

// --- Virtual memory (api/virtual_memory.cpp) ---

CUresult cuMemAddressReserve(Driver*, CUdeviceptr* out, size_t size, size_t alignment,
                             CUdeviceptr addr, unsigned long long flags);
CUresult cuMemAddressFree(Driver*, CUdeviceptr address, size_t size);
CUresult cuMemGetAllocationGranularity(Driver*, size_t* out, const CUmemAllocationProp* prop,
                                       CUmemAllocationGranularity_flags option);
CUresult cuMemCreate(Driver*, CUmemGenericAllocationHandle* out, size_t size,
                     const CUmemAllocationProp* prop, unsigned long long flags);
CUresult cuMemRelease(Driver*, CUmemGenericAllocationHandle handle);
CUresult cuMemRetainAllocationHandle(Driver*, CUmemGenericAllocationHandle* out, void* address);
CUresult cuMemGetAllocationPropertiesFromHandle(Driver*, CUmemAllocationProp* out,
                                                CUmemGenericAllocationHandle handle);
CUresult cuMemMap(Driver*, CUdeviceptr address, size_t size, size_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long flags);
CUresult cuMemUnmap(Driver*, CUdeviceptr address, size_t size);
CUresult cuMemSetAccess(Driver*, CUdeviceptr address, size_t size,
                        const CUmemAccessDesc* descriptions, size_t count);
CUresult cuMemGetAccess(Driver*, unsigned long long* flags, const CUmemLocation* location,
                        CUdeviceptr address);
CUresult cuMemExportToShareableHandle(Driver*, void* out, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long flags);
CUresult cuMemImportFromShareableHandle(Driver*, CUmemGenericAllocationHandle* out, void* os_handle,
                                        CUmemAllocationHandleType type);
CUresult cuMemGetHandleForAddressRange(Driver*, void* out, CUdeviceptr address, size_t size,
                                       CUmemRangeHandleType type, unsigned long long flags);

// --- Stream-ordered memory and pools (api/memory_pools.cpp) ---

CUresult cuMemAllocAsync(CUdeviceptr* out, size_t bytes, Stream* stream);
CUresult cuMemAllocFromPoolAsync(CUdeviceptr* out, size_t bytes, CUmemoryPool pool, Stream* stream);
CUresult cuMemFreeAsync(CUdeviceptr address, Stream* stream);
CUresult cuMemPoolCreate(Driver*, CUmemoryPool* out, const CUmemPoolProps* props);
CUresult cuMemPoolDestroy(Driver*, CUmemoryPool handle);
CUresult cuMemPoolTrimTo(Driver*, CUmemoryPool handle, size_t keep_bytes);
CUresult cuMemPoolSetAttribute(Driver*, CUmemoryPool handle, CUmemPool_attribute attribute,
                               void* value);
CUresult cuMemPoolGetAttribute(Driver*, CUmemoryPool handle, CUmemPool_attribute attribute,
                               void* value);
CUresult cuMemPoolSetAccess(Driver*, CUmemoryPool handle, const CUmemAccessDesc* map, size_t count);
CUresult cuMemPoolGetAccess(Driver*, CUmemAccess_flags* flags, CUmemoryPool handle,
                            CUmemLocation* location);
CUresult cuMemGetDefaultMemPool(Driver*, CUmemoryPool* out, CUmemLocation* location,
                                CUmemAllocationType type);
CUresult cuMemGetMemPool(Driver*, CUmemoryPool* out, CUmemLocation* location,
                         CUmemAllocationType type);
CUresult cuMemSetMemPool(Driver*, CUmemLocation* location, CUmemAllocationType type,
                         CUmemoryPool handle);
CUresult cuDeviceGetDefaultMemPool(Driver*, CUmemoryPool* out, CUdevice device);
CUresult cuDeviceGetMemPool(Driver*, CUmemoryPool* out, CUdevice device);
CUresult cuDeviceSetMemPool(Driver*, CUdevice device, CUmemoryPool pool);
CUresult cuMemPoolExportToShareableHandle(Driver*, void* out, CUmemoryPool handle,
                                          CUmemAllocationHandleType type, unsigned long long flags);
CUresult cuMemPoolImportFromShareableHandle(Driver*, CUmemoryPool* out, void* handle,
                                            CUmemAllocationHandleType type,
                                            unsigned long long flags);
CUresult cuMemPoolExportPointer(Driver*, CUmemPoolPtrExportData* out, CUdeviceptr address);
CUresult cuMemPoolImportPointer(Driver*, CUdeviceptr* out, CUmemoryPool handle,
                                CUmemPoolPtrExportData* share);

// --- Streams and events (api/stream.cpp) ---

CUresult cuStreamCreateWithPriority(Context*, CUstream* out, unsigned int flags, int priority);
CUresult cuStreamCreate(Context*, CUstream* out, unsigned int flags);
CUresult cuStreamDestroy_v2(Driver*, CUstream handle);
CUresult cuStreamDestroy(Driver*, CUstream handle);
CUresult cuStreamGetPriority(Stream* stream, int* priority);
CUresult cuStreamGetFlags(Stream* stream, unsigned int* flags);
CUresult cuStreamGetId(Stream* stream, unsigned long long* id);
CUresult cuStreamGetCtx(Stream* stream, CUcontext* out);
CUresult cuStreamGetCtx_v2(Stream* stream, CUcontext* out, CUgreenCtx* green);
CUresult cuStreamGetDevice(Stream* stream, CUdevice* device);
CUresult cuStreamQuery(Stream* stream);
CUresult cuStreamSynchronize(Stream* stream);
CUresult cuStreamAttachMemAsync(Stream* stream, CUdeviceptr dptr, size_t length,
                                unsigned int flags);
CUresult cuStreamCopyAttributes(Stream* target, CUstream from);
CUresult cuStreamGetAttribute(Stream* stream, CUstreamAttrID attribute, CUstreamAttrValue* value);
CUresult cuStreamSetAttribute(Stream* stream, CUstreamAttrID attribute,
                              const CUstreamAttrValue* value);
CUresult cuStreamAddCallback(Context*, CUstream handle, CUstreamCallback callback, void* data,
                             unsigned int flags);
CUresult cuLaunchHostFunc(Stream* stream, CUhostFn function, void* data);
CUresult cuStreamWriteValue32_v2(Stream* stream, CUdeviceptr address, cuuint32_t value,
                                 unsigned int flags);
CUresult cuStreamWriteValue64_v2(Stream* stream, CUdeviceptr address, cuuint64_t value,
                                 unsigned int flags);
CUresult cuStreamWriteValue32(Stream* stream, CUdeviceptr address, cuuint32_t value,
                              unsigned int flags);
CUresult cuStreamWriteValue64(Stream* stream, CUdeviceptr address, cuuint64_t value,
                              unsigned int flags);
CUresult cuStreamWaitValue32_v2(Stream* stream, CUdeviceptr addr, cuuint32_t value,
                                unsigned int flags);
CUresult cuStreamWaitValue64_v2(Stream* stream, CUdeviceptr addr, cuuint64_t value,
                                unsigned int flags);
CUresult cuStreamWaitValue32(Stream* stream, CUdeviceptr addr, cuuint32_t value,
                             unsigned int flags);
CUresult cuStreamWaitValue64(Stream* stream, CUdeviceptr addr, cuuint64_t value,
                             unsigned int flags);
CUresult cuStreamBatchMemOp_v2(Stream* stream, unsigned int count,
                               CUstreamBatchMemOpParams* operations, unsigned int flags);
CUresult cuStreamBatchMemOp(Stream* stream, unsigned int count,
                            CUstreamBatchMemOpParams* operations, unsigned int flags);
CUresult cuEventCreate(Context*, CUevent* out, unsigned int flags);
CUresult cuEventDestroy_v2(Driver*, CUevent handle);
CUresult cuEventDestroy(Driver*, CUevent handle);
CUresult cuEventRecordWithFlags(CUevent handle, Stream* stream, unsigned int flags);
CUresult cuEventRecord(CUevent event, Stream* stream);
CUresult cuStreamWaitEvent(Stream* stream, CUevent handle, unsigned int flags);
CUresult cuEventQuery(Driver*, CUevent handle);
CUresult cuEventSynchronize(Driver*, CUevent handle);
CUresult cuEventElapsedTime_v2(Driver*, float* milliseconds, CUevent start_handle,
                               CUevent end_handle);
CUresult cuEventElapsedTime(Driver*, float* milliseconds, CUevent start, CUevent end);
CUresult cuCtxRecordEvent(Driver*, CUcontext handle, CUevent event);
CUresult cuCtxWaitEvent(Driver*, CUcontext handle, CUevent event);

// --- Memory and events of other processes; peers (api/ipc.cpp) ---

CUresult cuIpcGetMemHandle(Context*, CUipcMemHandle* out, CUdeviceptr address);
CUresult cuIpcOpenMemHandle_v2(Context*, CUdeviceptr* out, CUipcMemHandle handle,
                               unsigned int flags);
CUresult cuIpcOpenMemHandle(Context*, CUdeviceptr* out, CUipcMemHandle handle, unsigned int flags);
CUresult cuIpcCloseMemHandle(Driver*, CUdeviceptr address);
CUresult cuIpcGetEventHandle(Driver*, CUipcEventHandle* out, CUevent handle);
CUresult cuIpcOpenEventHandle(Context*, CUevent* out, CUipcEventHandle handle);
CUresult cuDeviceCanAccessPeer(Driver*, int* out, CUdevice handle, CUdevice peer_handle);
CUresult cuCtxEnablePeerAccess(Context*, CUcontext handle, unsigned int flags);
CUresult cuCtxDisablePeerAccess(Context*, CUcontext handle);
CUresult cuDeviceGetP2PAttribute(Driver*, int* value, CUdevice_P2PAttribute attribute,
                                 CUdevice from_handle, CUdevice to_handle);
CUresult cuDeviceGetP2PAtomicCapabilities(Driver*, unsigned int* capabilities,
                                          const CUatomicOperation* operations, unsigned int count,
                                          CUdevice from_handle, CUdevice to_handle);

// --- Arrays (api/array.cpp) ---

CUresult cuArray3DCreate_v2(Context*, CUarray* out, const CUDA_ARRAY3D_DESCRIPTOR* descriptor);
CUresult cuArrayCreate_v2(Context*, CUarray* out, const CUDA_ARRAY_DESCRIPTOR* d);
CUresult cuArray3DCreate(Context*, CUarray* out, const CUDA_ARRAY3D_DESCRIPTOR_v1* d);
CUresult cuArrayCreate(Context*, CUarray* out, const CUDA_ARRAY_DESCRIPTOR_v1* d);
CUresult cuArray3DGetDescriptor_v2(Driver*, CUDA_ARRAY3D_DESCRIPTOR* out, CUarray handle);
CUresult cuArray3DGetDescriptor(Driver*, CUDA_ARRAY3D_DESCRIPTOR_v1* out, CUarray handle);
CUresult cuArrayGetDescriptor_v2(Driver*, CUDA_ARRAY_DESCRIPTOR* out, CUarray handle);
CUresult cuArrayGetDescriptor(Driver*, CUDA_ARRAY_DESCRIPTOR_v1* out, CUarray handle);
CUresult cuArrayDestroy(Driver*, CUarray handle);
CUresult cuArrayGetPlane(Driver*, CUarray* out, CUarray handle, unsigned int planeIdx);
CUresult cuArrayGetSparseProperties(Driver*, CUDA_ARRAY_SPARSE_PROPERTIES* out, CUarray handle);
CUresult cuArrayGetMemoryRequirements(Driver*, CUDA_ARRAY_MEMORY_REQUIREMENTS* out, CUarray handle,
                                      CUdevice device);
CUresult cuMipmappedArrayCreate(Context*, CUmipmappedArray* out,
                                const CUDA_ARRAY3D_DESCRIPTOR* descriptor, unsigned int levels);
CUresult cuMipmappedArrayGetLevel(Driver*, CUarray* out, CUmipmappedArray handle,
                                  unsigned int level);
CUresult cuMipmappedArrayDestroy(Driver*, CUmipmappedArray handle);
CUresult cuMipmappedArrayGetSparseProperties(Driver*, CUDA_ARRAY_SPARSE_PROPERTIES* out,
                                             CUmipmappedArray handle);
CUresult cuMipmappedArrayGetMemoryRequirements(Driver*, CUDA_ARRAY_MEMORY_REQUIREMENTS* out,
                                               CUmipmappedArray handle, CUdevice device);
CUresult cuMemMapArrayAsync(CUarrayMapInfo* list, unsigned int count, Stream* stream);

// --- Copies of arrays (api/array_copy.cpp) ---

CUresult cuMemcpyDtoA_v2(Driver*, CUarray to, size_t offset, CUdeviceptr from, size_t n);
CUresult cuMemcpyAtoD_v2(Driver*, CUdeviceptr to, CUarray from, size_t offset, size_t n);
CUresult cuMemcpyHtoA_v2(Driver*, CUarray to, size_t offset, const void* from, size_t n);
CUresult cuMemcpyAtoH_v2(Driver*, void* to, CUarray from, size_t offset, size_t n);
CUresult cuMemcpyAtoA_v2(Driver*, CUarray to, size_t to_offset, CUarray from, size_t from_offset,
                         size_t n);
CUresult cuMemcpyHtoAAsync_v2(Driver*, CUarray to, size_t offset, const void* from, size_t n,
                              CUstream stream);
CUresult cuMemcpyAtoHAsync_v2(Driver*, void* to, CUarray from, size_t offset, size_t n,
                              CUstream stream);

// --- Textures and surfaces (api/texture.cpp) ---

CUresult cuTexObjectCreate(Context*, CUtexObject* out, const CUDA_RESOURCE_DESC* resource,
                           const CUDA_TEXTURE_DESC* texture, const CUDA_RESOURCE_VIEW_DESC* view);
CUresult cuTexObjectDestroy(Driver*, CUtexObject object);
CUresult cuTexObjectGetResourceDesc(Driver*, CUDA_RESOURCE_DESC* out, CUtexObject object);
CUresult cuTexObjectGetTextureDesc(Driver*, CUDA_TEXTURE_DESC* out, CUtexObject object);
CUresult cuTexObjectGetResourceViewDesc(Driver*, CUDA_RESOURCE_VIEW_DESC* out, CUtexObject object);
CUresult cuSurfObjectCreate(Context*, CUsurfObject* out, const CUDA_RESOURCE_DESC* resource);
CUresult cuSurfObjectDestroy(Driver*, CUsurfObject object);
CUresult cuSurfObjectGetResourceDesc(Driver*, CUDA_RESOURCE_DESC* out, CUsurfObject object);
CUresult cuTexRefCreate(Context*, CUtexref* out);
CUresult cuTexRefDestroy(Driver*, CUtexref handle);
CUresult cuTexRefSetArray(Driver*, CUtexref handle, CUarray array_handle, unsigned int Flags);
CUresult cuTexRefSetMipmappedArray(Driver*, CUtexref handle, CUmipmappedArray array,
                                   unsigned int Flags);
CUresult cuTexRefSetAddress_v2(Driver*, size_t* offset, CUtexref handle, CUdeviceptr address,
                               size_t bytes);
CUresult cuTexRefSetAddress2D_v3(Driver*, CUtexref handle, const CUDA_ARRAY_DESCRIPTOR* descriptor,
                                 CUdeviceptr address, size_t pitch);
CUresult cuTexRefSetAddress2D_v2(Driver*, CUtexref handle, const CUDA_ARRAY_DESCRIPTOR* descriptor,
                                 CUdeviceptr address, size_t pitch);
CUresult cuTexRefSetFormat(Driver*, CUtexref handle, CUarray_format format, int channels);
CUresult cuTexRefSetAddressMode(Driver*, CUtexref handle, int dimension, CUaddress_mode mode);
CUresult cuTexRefSetFilterMode(Driver*, CUtexref handle, CUfilter_mode mode);
CUresult cuTexRefSetMipmapFilterMode(Driver*, CUtexref handle, CUfilter_mode mode);
CUresult cuTexRefSetMipmapLevelBias(Driver*, CUtexref handle, float bias);
CUresult cuTexRefSetMipmapLevelClamp(Driver*, CUtexref handle, float low, float high);
CUresult cuTexRefSetMaxAnisotropy(Driver*, CUtexref handle, unsigned int most);
CUresult cuTexRefSetBorderColor(Driver*, CUtexref handle, float* color);
CUresult cuTexRefSetFlags(Driver*, CUtexref handle, unsigned int flags);
CUresult cuTexRefGetAddress_v2(Driver*, CUdeviceptr* out, CUtexref handle);
CUresult cuTexRefGetArray(Driver*, CUarray* out, CUtexref handle);
CUresult cuTexRefGetMipmappedArray(Driver*, CUmipmappedArray* out, CUtexref handle);
CUresult cuTexRefGetAddressMode(Driver*, CUaddress_mode* out, CUtexref handle, int dimension);
CUresult cuTexRefGetFilterMode(Driver*, CUfilter_mode* out, CUtexref handle);
CUresult cuTexRefGetFormat(Driver*, CUarray_format* format, int* channels, CUtexref handle);
CUresult cuTexRefGetMipmapFilterMode(Driver*, CUfilter_mode* out, CUtexref handle);
CUresult cuTexRefGetMipmapLevelBias(Driver*, float* out, CUtexref handle);
CUresult cuTexRefGetMipmapLevelClamp(Driver*, float* low, float* high, CUtexref handle);
CUresult cuTexRefGetMaxAnisotropy(Driver*, int* out, CUtexref handle);
CUresult cuTexRefGetBorderColor(Driver*, float* out, CUtexref handle);
CUresult cuTexRefGetFlags(Driver*, unsigned int* out, CUtexref handle);
CUresult cuSurfRefSetArray(Driver*, CUsurfref hSurfRef, CUarray hArray, unsigned int Flags);
CUresult cuSurfRefGetArray(Driver*, CUarray* phArray, CUsurfref hSurfRef);

// --- External memory and semaphores (api/external.cpp) ---

CUresult cuImportExternalMemory(Context*, CUexternalMemory* out,
                                const CUDA_EXTERNAL_MEMORY_HANDLE_DESC* description);
CUresult cuExternalMemoryGetMappedBuffer(Context*, CUdeviceptr* out, CUexternalMemory extMem,
                                         const CUDA_EXTERNAL_MEMORY_BUFFER_DESC* description);
CUresult cuExternalMemoryGetMappedMipmappedArray(
    Context*, CUmipmappedArray* out, CUexternalMemory extMem,
    const CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC* description);
CUresult cuDestroyExternalMemory(Driver*, CUexternalMemory extMem);
CUresult cuImportExternalSemaphore(Context*, CUexternalSemaphore* out,
                                   const CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC* description);
CUresult cuSignalExternalSemaphoresAsync(Context*, const CUexternalSemaphore* semaphores,
                                         const CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS* params,
                                         unsigned int count, CUstream stream);
CUresult cuWaitExternalSemaphoresAsync(Context*, const CUexternalSemaphore* semaphores,
                                       const CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS* params,
                                       unsigned int count, CUstream stream);
CUresult cuDestroyExternalSemaphore(Driver*, CUexternalSemaphore extSem);

// --- Green contexts (api/green_context.cpp) ---

CUresult cuDeviceGetDevResource(Driver*, CUdevice handle, CUdevResource* out,
                                CUdevResourceType type);
CUresult cuCtxGetDevResource(Driver*, CUcontext handle, CUdevResource* out, CUdevResourceType type);
CUresult cuGreenCtxGetDevResource(Driver*, CUgreenCtx handle, CUdevResource* out,
                                  CUdevResourceType type);
CUresult cuDevSmResourceSplitByCount(Driver*, CUdevResource* result, unsigned int* groups,
                                     const CUdevResource* input, CUdevResource* remaining,
                                     unsigned int flags, unsigned int least_count);
CUresult cuDevResourceGenerateDesc(Driver*, CUdevResourceDesc* out, CUdevResource* resources,
                                   unsigned int count);
CUresult cuGreenCtxCreate(Driver*, CUgreenCtx* out, CUdevResourceDesc description, Device* device,
                          unsigned int flags);
CUresult cuGreenCtxDestroy(Driver*, CUgreenCtx handle);
CUresult cuCtxFromGreenCtx(Driver*, CUcontext* out, CUgreenCtx handle);
CUresult cuGreenCtxGetId(Driver*, CUgreenCtx handle, unsigned long long* id);
CUresult cuGreenCtxStreamCreate(Driver*, CUstream* out, CUgreenCtx handle, unsigned int flags,
                                int priority);
CUresult cuStreamGetGreenCtx(Context*, CUstream stream, CUgreenCtx* out);
CUresult cuGreenCtxRecordEvent(Driver*, CUgreenCtx handle, CUevent event);
CUresult cuGreenCtxWaitEvent(Driver*, CUgreenCtx handle, CUevent event);

// --- Multicast (api/multicast.cpp) ---

CUresult cuMulticastCreate(Driver*, CUmemGenericAllocationHandle* out,
                           const CUmulticastObjectProp* prop);
CUresult cuMulticastGetGranularity(Driver*, size_t* out, const CUmulticastObjectProp* prop,
                                   CUmulticastGranularity_flags option);
CUresult cuMulticastAddDevice(Driver*, CUmemGenericAllocationHandle mcHandle, CUdevice device);
CUresult cuMulticastBindMem(Driver*, CUmemGenericAllocationHandle mcHandle, size_t mcOffset,
                            CUmemGenericAllocationHandle memHandle, size_t memOffset, size_t size,
                            unsigned long long flags);
CUresult cuMulticastBindAddr(Driver*, CUmemGenericAllocationHandle mcHandle, size_t mcOffset,
                             CUdeviceptr memptr, size_t size, unsigned long long flags);
CUresult cuMulticastUnbind(Driver*, CUmemGenericAllocationHandle mcHandle, CUdevice device,
                           size_t mcOffset, size_t size);

// --- Tensor maps and the linker (api/tensor_map.cpp) ---

CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType tensorDataType,
                                cuuint32_t rank, void* address, const cuuint64_t* dims,
                                const cuuint64_t* globalStrides, const cuuint32_t* box,
                                const cuuint32_t* elementStrides, CUtensorMapInterleave interleave,
                                CUtensorMapSwizzle swizzle, CUtensorMapL2promotion l2Promotion,
                                CUtensorMapFloatOOBfill oobFill);
CUresult cuTensorMapEncodeIm2col(CUtensorMap* map, CUtensorMapDataType tensorDataType,
                                 cuuint32_t rank, void* address, const cuuint64_t* dims,
                                 const cuuint64_t* globalStrides, const int* pixelBoxLowerCorner,
                                 const int* pixelBoxUpperCorner, cuuint32_t channelsPerPixel,
                                 cuuint32_t pixelsPerColumn, const cuuint32_t* elementStrides,
                                 CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                 CUtensorMapL2promotion l2Promotion,
                                 CUtensorMapFloatOOBfill oobFill);
CUresult cuTensorMapEncodeIm2colWide(CUtensorMap* map, CUtensorMapDataType tensorDataType,
                                     cuuint32_t rank, void* address, const cuuint64_t* dims,
                                     const cuuint64_t* globalStrides, int pixelBoxLowerCornerWidth,
                                     int pixelBoxUpperCornerWidth, cuuint32_t channelsPerPixel,
                                     cuuint32_t pixelsPerColumn, const cuuint32_t* elementStrides,
                                     CUtensorMapInterleave interleave,
                                     CUtensorMapIm2ColWideMode mode, CUtensorMapSwizzle swizzle,
                                     CUtensorMapL2promotion l2Promotion,
                                     CUtensorMapFloatOOBfill oobFill);
CUresult cuTensorMapReplaceAddress(CUtensorMap* map, void* address);
CUresult cuLinkCreate_v2(Context*, unsigned int count, CUjit_option* options, void** values,
                         CUlinkState* out);
CUresult cuLinkAddData_v2(Driver*, CUlinkState handle, CUjitInputType type, void* data, size_t size,
                          const char* name, unsigned int count, CUjit_option* options,
                          void** values);
CUresult cuLinkAddFile_v2(Driver*, CUlinkState handle, CUjitInputType type, const char* path,
                          unsigned int count, CUjit_option* options, void** values);
CUresult cuLinkComplete(Driver*, CUlinkState handle, void** image, size_t* size);
CUresult cuLinkDestroy(Driver*, CUlinkState handle);

// --- Finding functions, errors, profiler, logs (api/entry_points.cpp) ---

CUresult cuGetProcAddress_v2(const char* symbol, void** function, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult* status);
CUresult cuGetProcAddress(const char* symbol, void** function, int version, cuuint64_t flags);
CUresult cuGetErrorString(CUresult code, const char** text);
CUresult cuGetErrorName(CUresult code, const char** name);
CUresult cuProfilerInitialize(const char* configuration, const char* output, int mode);
CUresult cuProfilerStart(Driver*);
CUresult cuProfilerStop(Driver*);
CUresult cuLogsCurrent(CUlogIterator* iterator, unsigned int flags);
CUresult cuLogsDumpToMemory(CUlogIterator* iterator, char* buffer, size_t* size,
                            unsigned int flags);
CUresult cuLogsRegisterCallback(CUlogsCallback callback, void* userData,
                                CUlogsCallbackHandle* handle);
CUresult cuLogsUnregisterCallback(CUlogsCallbackHandle handle);

// --- Graphs: objects (graphs/graph_objects.cpp) ---

CUresult cuUserObjectCreate(Driver*, CUuserObject* out, void* pointer, CUhostFn destroy,
                            unsigned int references, unsigned int flags);
CUresult cuUserObjectRetain(Driver*, CUuserObject handle, unsigned int count);
CUresult cuUserObjectRelease(Driver*, CUuserObject handle, unsigned int count);
CUresult cuGraphRetainUserObject(Driver*, CUgraph graph_handle, CUuserObject handle,
                                 unsigned int count, unsigned int flags);
CUresult cuGraphReleaseUserObject(Driver*, CUgraph graph_handle, CUuserObject handle,
                                  unsigned int count);
CUresult cuGraphCreate(Driver*, CUgraph* out, unsigned int flags);
CUresult cuGraphDestroy(Driver*, CUgraph handle);
CUresult cuGraphClone(Driver*, CUgraph* out, CUgraph handle);

// --- Graphs: nodes (graphs/graph_nodes.cpp) ---

CUresult cuGraphAddKernelNode_v2(Context*, CUgraphNode* out, CUgraph graph,
                                 const CUgraphNode* dependencies, size_t count,
                                 const CUDA_KERNEL_NODE_PARAMS* params);
CUresult cuGraphAddKernelNode(Context*, CUgraphNode* out, CUgraph graph,
                              const CUgraphNode* dependencies, size_t count,
                              const CUDA_KERNEL_NODE_PARAMS_v1* params);
CUresult cuGraphKernelNodeGetParams_v2(Driver*, CUgraphNode node, CUDA_KERNEL_NODE_PARAMS* out);
CUresult cuGraphKernelNodeGetParams(Driver*, CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v1* out);
CUresult cuGraphKernelNodeSetParams_v2(Driver*, CUgraphNode node,
                                       const CUDA_KERNEL_NODE_PARAMS* params);
CUresult cuGraphKernelNodeSetParams(Driver*, CUgraphNode node,
                                    const CUDA_KERNEL_NODE_PARAMS_v1* params);
CUresult cuGraphKernelNodeGetAttribute(Driver*, CUgraphNode node, CUkernelNodeAttrID attribute,
                                       CUkernelNodeAttrValue* out);
CUresult cuGraphKernelNodeSetAttribute(Driver*, CUgraphNode node, CUkernelNodeAttrID attribute,
                                       const CUkernelNodeAttrValue* value);
CUresult cuGraphKernelNodeCopyAttributes(Driver*, CUgraphNode to, CUgraphNode from);
CUresult cuGraphAddMemcpyNode(Context*, CUgraphNode* out, CUgraph graph,
                              const CUgraphNode* dependencies, size_t count,
                              const CUDA_MEMCPY3D* copy, CUcontext context);
CUresult cuGraphMemcpyNodeGetParams(Driver*, CUgraphNode node, CUDA_MEMCPY3D* out);
CUresult cuGraphMemcpyNodeSetParams(Driver*, CUgraphNode node, const CUDA_MEMCPY3D* copy);
CUresult cuGraphAddMemsetNode(Context*, CUgraphNode* out, CUgraph graph,
                              const CUgraphNode* dependencies, size_t count,
                              const CUDA_MEMSET_NODE_PARAMS* params, CUcontext context);
CUresult cuGraphMemsetNodeGetParams(Driver*, CUgraphNode node, CUDA_MEMSET_NODE_PARAMS* out);
CUresult cuGraphMemsetNodeSetParams(Driver*, CUgraphNode node,
                                    const CUDA_MEMSET_NODE_PARAMS* params);
CUresult cuGraphAddHostNode(Context*, CUgraphNode* out, CUgraph graph,
                            const CUgraphNode* dependencies, size_t count,
                            const CUDA_HOST_NODE_PARAMS* params);
CUresult cuGraphHostNodeGetParams(Driver*, CUgraphNode node, CUDA_HOST_NODE_PARAMS* out);
CUresult cuGraphHostNodeSetParams(Driver*, CUgraphNode node, const CUDA_HOST_NODE_PARAMS* params);
CUresult cuGraphAddChildGraphNode(Context*, CUgraphNode* out, CUgraph graph,
                                  const CUgraphNode* dependencies, size_t count, CUgraph child);
CUresult cuGraphChildGraphNodeGetGraph(Driver*, CUgraphNode node, CUgraph* out);
CUresult cuGraphAddEmptyNode(Context*, CUgraphNode* out, CUgraph graph,
                             const CUgraphNode* dependencies, size_t count);
CUresult cuGraphAddEventRecordNode(Context*, CUgraphNode* out, CUgraph graph,
                                   const CUgraphNode* dependencies, size_t count, CUevent event);
CUresult cuGraphEventRecordNodeGetEvent(Driver*, CUgraphNode node, CUevent* out);
CUresult cuGraphEventRecordNodeSetEvent(Driver*, CUgraphNode node, CUevent event);
CUresult cuGraphAddEventWaitNode(Context*, CUgraphNode* out, CUgraph graph,
                                 const CUgraphNode* dependencies, size_t count, CUevent event);
CUresult cuGraphEventWaitNodeGetEvent(Driver*, CUgraphNode node, CUevent* out);
CUresult cuGraphEventWaitNodeSetEvent(Driver*, CUgraphNode node, CUevent event);
CUresult cuGraphAddBatchMemOpNode(Context*, CUgraphNode* out, CUgraph graph,
                                  const CUgraphNode* dependencies, size_t count,
                                  const CUDA_BATCH_MEM_OP_NODE_PARAMS* params);
CUresult cuGraphBatchMemOpNodeGetParams(Driver*, CUgraphNode node,
                                        CUDA_BATCH_MEM_OP_NODE_PARAMS* out);
CUresult cuGraphBatchMemOpNodeSetParams(Driver*, CUgraphNode node,
                                        const CUDA_BATCH_MEM_OP_NODE_PARAMS* params);
CUresult cuGraphAddMemAllocNode(Context*, CUgraphNode* out, CUgraph graph,
                                const CUgraphNode* dependencies, size_t count,
                                CUDA_MEM_ALLOC_NODE_PARAMS* params);
CUresult cuGraphMemAllocNodeGetParams(Driver*, CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS* out);
CUresult cuGraphAddMemFreeNode(Context*, CUgraphNode* out, CUgraph graph,
                               const CUgraphNode* dependencies, size_t count, CUdeviceptr address);
CUresult cuGraphMemFreeNodeGetParams(Driver*, CUgraphNode node, CUdeviceptr* out);
CUresult cuGraphAddExternalSemaphoresSignalNode(Driver*, CUgraphNode* out, CUgraph hGraph,
                                                const CUgraphNode* dependencies,
                                                size_t numDependencies,
                                                const CUDA_EXT_SEM_SIGNAL_NODE_PARAMS* params);
CUresult cuGraphAddExternalSemaphoresWaitNode(Driver*, CUgraphNode* out, CUgraph hGraph,
                                              const CUgraphNode* dependencies,
                                              size_t numDependencies,
                                              const CUDA_EXT_SEM_WAIT_NODE_PARAMS* params);
CUresult cuGraphExternalSemaphoresSignalNodeGetParams(Driver*, CUgraphNode node,
                                                      CUDA_EXT_SEM_SIGNAL_NODE_PARAMS* params_out);
CUresult cuGraphExternalSemaphoresSignalNodeSetParams(
    Driver*, CUgraphNode node, const CUDA_EXT_SEM_SIGNAL_NODE_PARAMS* nodeParams);
CUresult cuGraphExternalSemaphoresWaitNodeGetParams(Driver*, CUgraphNode node,
                                                    CUDA_EXT_SEM_WAIT_NODE_PARAMS* params_out);
CUresult cuGraphExternalSemaphoresWaitNodeSetParams(
    Driver*, CUgraphNode node, const CUDA_EXT_SEM_WAIT_NODE_PARAMS* nodeParams);
CUresult cuGraphConditionalHandleCreate(Driver*, CUgraphConditionalHandle* out, CUgraph handle,
                                        CUcontext context, unsigned int value, unsigned int flags);
CUresult cuGraphAddNode_v2(Context*, CUgraphNode* out, CUgraph handle,
                           const CUgraphNode* dependencies, const CUgraphEdgeData* data,
                           size_t count, CUgraphNodeParams* api);
CUresult cuGraphAddNode(Context*, CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies,
                        size_t count, CUgraphNodeParams* api);
CUresult cuGraphNodeSetParams(Driver*, CUgraphNode node, CUgraphNodeParams* api);

// --- Graphs: questions (graphs/graph_query.cpp) ---

CUresult cuGraphNodeGetType(Driver*, CUgraphNode handle, CUgraphNodeType* type);
CUresult cuGraphNodeFindInClone(Driver*, CUgraphNode* out, CUgraphNode original, CUgraph clone);
CUresult cuGraphGetNodes(Driver*, CUgraph handle, CUgraphNode* nodes, size_t* count);
CUresult cuGraphGetRootNodes(Driver*, CUgraph handle, CUgraphNode* nodes, size_t* count);
CUresult cuGraphGetEdges_v2(Driver*, CUgraph graph, CUgraphNode* from, CUgraphNode* to,
                            CUgraphEdgeData* data, size_t* count);
CUresult cuGraphGetEdges(Driver*, CUgraph graph, CUgraphNode* from, CUgraphNode* to, size_t* count);
CUresult cuGraphNodeGetDependencies_v2(Driver*, CUgraphNode node, CUgraphNode* nodes,
                                       CUgraphEdgeData* data, size_t* count);
CUresult cuGraphNodeGetDependencies(Driver*, CUgraphNode node, CUgraphNode* nodes, size_t* count);
CUresult cuGraphNodeGetDependentNodes_v2(Driver*, CUgraphNode node, CUgraphNode* nodes,
                                         CUgraphEdgeData* data, size_t* count);
CUresult cuGraphNodeGetDependentNodes(Driver*, CUgraphNode node, CUgraphNode* nodes, size_t* count);
CUresult cuGraphAddDependencies_v2(Driver*, CUgraph graph, const CUgraphNode* from,
                                   const CUgraphNode* to, const CUgraphEdgeData* data,
                                   size_t count);
CUresult cuGraphAddDependencies(Driver*, CUgraph graph, const CUgraphNode* from,
                                const CUgraphNode* to, size_t count);
CUresult cuGraphRemoveDependencies_v2(Driver*, CUgraph graph, const CUgraphNode* from,
                                      const CUgraphNode* to, const CUgraphEdgeData* data,
                                      size_t count);
CUresult cuGraphRemoveDependencies(Driver*, CUgraph graph, const CUgraphNode* from,
                                   const CUgraphNode* to, size_t count);
CUresult cuGraphDestroyNode(Driver*, CUgraphNode handle);

// --- Graphs: executable graphs (graphs/graph_exec.cpp) ---

CUresult cuGraphInstantiateWithFlags(Driver*, CUgraphExec* out, CUgraph graph,
                                     unsigned long long flags);
CUresult cuGraphInstantiate_v2(Driver*, CUgraphExec* out, CUgraph graph, CUgraphNode* error_node,
                               char* log, size_t log_bytes);
CUresult cuGraphInstantiate(Driver*, CUgraphExec* out, CUgraph graph, CUgraphNode* error_node,
                            char* log, size_t log_bytes);
CUresult cuGraphInstantiateWithParams(Driver*, CUgraphExec* out, CUgraph graph,
                                      CUDA_GRAPH_INSTANTIATE_PARAMS* params);
CUresult cuGraphExecGetFlags(Driver*, CUgraphExec handle, cuuint64_t* flags);
CUresult cuGraphExecDestroy(Driver*, CUgraphExec handle);
CUresult cuGraphExecUpdate_v2(Driver*, CUgraphExec exec, CUgraph graph,
                              CUgraphExecUpdateResultInfo* info);
CUresult cuGraphExecUpdate(Driver*, CUgraphExec exec, CUgraph graph, CUgraphNode* error_node,
                           CUgraphExecUpdateResult* result);
CUresult cuGraphExecNodeSetParams(Driver*, CUgraphExec exec, CUgraphNode node,
                                  CUgraphNodeParams* params);
CUresult cuGraphExecKernelNodeSetParams_v2(Driver*, CUgraphExec exec, CUgraphNode node,
                                           const CUDA_KERNEL_NODE_PARAMS* params);
CUresult cuGraphExecKernelNodeSetParams(Driver*, CUgraphExec exec, CUgraphNode node,
                                        const CUDA_KERNEL_NODE_PARAMS_v1* params);
CUresult cuGraphExecMemcpyNodeSetParams(Driver*, CUgraphExec exec, CUgraphNode node,
                                        const CUDA_MEMCPY3D* copy, CUcontext context);
CUresult cuGraphExecMemsetNodeSetParams(Driver*, CUgraphExec exec, CUgraphNode node,
                                        const CUDA_MEMSET_NODE_PARAMS* set, CUcontext context);
CUresult cuGraphExecHostNodeSetParams(Driver*, CUgraphExec exec, CUgraphNode node,
                                      const CUDA_HOST_NODE_PARAMS* host);
CUresult cuGraphExecChildGraphNodeSetParams(Driver*, CUgraphExec exec, CUgraphNode node,
                                            CUgraph child);
CUresult cuGraphExecEventRecordNodeSetEvent(Driver*, CUgraphExec exec, CUgraphNode node,
                                            CUevent event);
CUresult cuGraphExecEventWaitNodeSetEvent(Driver*, CUgraphExec exec, CUgraphNode node,
                                          CUevent event);
CUresult cuGraphExecBatchMemOpNodeSetParams(Driver*, CUgraphExec exec, CUgraphNode node,
                                            const CUDA_BATCH_MEM_OP_NODE_PARAMS* batch);
CUresult cuGraphExecExternalSemaphoresSignalNodeSetParams(
    Driver*, CUgraphExec exec, CUgraphNode node, const CUDA_EXT_SEM_SIGNAL_NODE_PARAMS* nodeParams);
CUresult cuGraphExecExternalSemaphoresWaitNodeSetParams(
    Driver*, CUgraphExec exec, CUgraphNode node, const CUDA_EXT_SEM_WAIT_NODE_PARAMS* nodeParams);
CUresult cuGraphNodeSetEnabled(Driver*, CUgraphExec exec_handle, CUgraphNode node,
                               unsigned int enabled);
CUresult cuGraphNodeGetEnabled(Driver*, CUgraphExec exec_handle, CUgraphNode node,
                               unsigned int* enabled);
CUresult cuGraphUpload(CUgraphExec handle, Stream* stream);
CUresult cuGraphLaunch(CUgraphExec handle, Stream* stream);

// --- Graphs: memory (graphs/graph_memory.cpp) ---

CUresult cuDeviceGraphMemTrim(Device* device);
CUresult cuDeviceGetGraphMemAttribute(Device* device, CUgraphMem_attribute attribute, void* value);
CUresult cuDeviceSetGraphMemAttribute(Device* device, CUgraphMem_attribute attribute, void* value);

// --- Graphs: capture (graphs/graph_capture.cpp) ---

CUresult cuStreamBeginCapture_v2(Stream* stream, CUstreamCaptureMode mode);
CUresult cuStreamBeginCapture(Stream* stream);
CUresult cuStreamBeginCaptureToGraph(Stream* stream, CUgraph graph, const CUgraphNode* dependencies,
                                     const CUgraphEdgeData* data, size_t count,
                                     CUstreamCaptureMode mode);
CUresult cuThreadExchangeStreamCaptureMode(Driver*, CUstreamCaptureMode* mode);
CUresult cuStreamEndCapture(Stream* stream, CUgraph* out);
CUresult cuStreamIsCapturing(Stream* stream, CUstreamCaptureStatus* out);
CUresult cuStreamGetCaptureInfo(Stream* stream, CUstreamCaptureStatus* status_out, cuuint64_t* id);
CUresult cuStreamGetCaptureInfo_v2(Stream* stream, CUstreamCaptureStatus* status_out,
                                   cuuint64_t* id, CUgraph* graph, const CUgraphNode** dependencies,
                                   size_t* count);
CUresult cuStreamGetCaptureInfo_v3(Stream* stream, CUstreamCaptureStatus* status_out,
                                   cuuint64_t* id, CUgraph* graph, const CUgraphNode** dependencies,
                                   const CUgraphEdgeData** data, size_t* count);
CUresult cuStreamUpdateCaptureDependencies(Stream* stream, CUgraphNode* nodes, size_t count,
                                           unsigned int flags);
CUresult cuStreamUpdateCaptureDependencies_v2(Stream* stream, CUgraphNode* nodes,
                                              const CUgraphEdgeData* data, size_t count,
                                              unsigned int flags);

// --- Graphs: pictures (graphs/graph_dot.cpp) ---

CUresult cuGraphDebugDotPrint(Driver*, CUgraph handle, const char* path, unsigned int flags);

// --- Private tables (export_tables/export_tables.cpp) ---

CUresult cuGetExportTable(const void** table, const CUuuid* id);

}  // namespace tonnage::driver
