// NCCL's interface over the recorder. Its versions 5 to 7 differ in what they tell, not in how they are called (abi.h):
// one table of functions serves them all.
#pragma once

#include <atomic>

#include "api/abi.h"
#include "core/recorder.h"

namespace megatronapp::nccl {

// The process's recorder: made once, by whoever switches recording on (bindings/control.cpp), and never taken away, since
// threads of NCCL may be in it until the process ends. Null until then: NCCL is asked for nothing.
extern std::atomic<Recorder*> recorder;

extern const abi::Plugin kPlugin;

}  // namespace megatronapp::nccl
