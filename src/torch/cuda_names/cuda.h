// See cuda_runtime_api.h. c10/cuda includes the driver's header for its version number in device code only.
#pragma once
