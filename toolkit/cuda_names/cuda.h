// See cuda_runtime_api.h. PyTorch includes the driver header here for its version number in device
// code only.
#pragma once
