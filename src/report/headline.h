// The report's first sentence, and the sentences about refusals: text, JSON, HTML and every command
// say the same.
#pragma once

#include <string>

#include "analysis/report.h"
#include "report/style.h"

namespace tonnage::report {

// "Fits: peak 7.74 GiB of 11.65 GiB, 3.91 GiB to spare on NVIDIA GeForce RTX 3060".
std::string headline(const analysis::Report& report, const Style& style);

// "PyTorch asked for 3.07 GiB when 1.20 GiB were free, at train.py:46 (loss_utils.py:40), in step
// 1, forward".
std::string refusal_sentence(const analysis::OutOfMemory& oom, const Style& style);

// "step 2, backward"; "" if neither is known.
std::string when_text(const analysis::Moment& moment);

// "cuBLAS", "the driver, for streams,": the subject of "asked".
std::string asker_text(const analysis::OutOfMemory& oom, const Style& style);

// "exit code 1", "signal 11 (Segmentation fault)".
std::string exit_text(const record::CommandEnd& end);

// The error that ended the command, as its Python process printed it: "ValueError: bad shape, at
// train.py:3"; "" if none is known.
std::string error_text(const analysis::Report& report, const Style& style);

// The verdict on one device, for tables and titles: "2.31 GiB to spare", "does not fit", "not
// judged: the command failed"; "" if nothing is known.
std::string device_verdict_text(const analysis::DeviceReport& device);

// The device that the headline is about: one that does not fit, else the one with the highest share
// in use; null: none.
const analysis::DeviceReport* leading_device(const analysis::Report& report);

}  // namespace tonnage::report
