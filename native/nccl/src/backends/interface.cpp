#include "backends/interface.h"

#include <unistd.h>

#include <exception>

namespace megatronapp::nccl {

std::atomic<Recorder*> recorder{nullptr};

namespace {

// NCCL must not see a failure of ours: what can't be recorded is not, and the training goes on.
template <typename Function>
abi::Result guarded(Function call) {
    if (Recorder* there = recorder.load(std::memory_order_acquire)) {
        try {
            call(*there);
        } catch (const std::exception&) {
        }
    }
    return abi::kSuccess;
}

abi::Result init(
    void** context, std::uint64_t communicator, int* mask, const char* name, int, int ranks, int rank,
    abi::Logger log) {
    if (context != nullptr) {
        *context = nullptr;
    }
    if (recorder.load(std::memory_order_acquire) == nullptr) {
        if (mask != nullptr) {
            *mask = 0;
        }
        if (log != nullptr) {
            log(abi::kInfo, abi::kLogOfProfilers, __FILE__, __LINE__,
                "megatronapp-nccl records nothing: the training is not run with --nccl-trace");
        }
        return abi::kSuccess;
    }
    return guarded([&](Recorder& to) {
        const Handle handle = to.add_communicator(communicator, name, ranks, rank, mask);
        if (context != nullptr && handle.kind != HandleKind::kNone) {
            *context = handle.pack();
        }
    });
}

Call call_of(const abi::Collective& given) {
    Call call;
    call.root = given.root;
    call.sequence = given.sequence;
    call.count = given.count;
    call.channels = given.channels;
    call.operation = given.function;
    call.type = given.type;
    call.algorithm = given.algorithm;
    call.protocol = given.protocol;
    return call;
}

// A copy engine's operations have no kernel that would tell when they run.
Call call_of(const abi::CopyEngineCollective& given) {
    Call call;
    call.root = given.root;
    call.sequence = given.sequence;
    call.count = given.count;
    call.timed = false;
    call.operation = given.function;
    call.type = given.type;
    call.algorithm = "CE";
    return call;
}

Call call_of(const abi::Message& given) {
    Call call;
    const bool receives = given.function != nullptr && given.function[0] == 'R';
    call.direction = receives ? Direction::kReceives : Direction::kSends;
    call.peer = given.peer;
    call.count = given.count;
    call.channels = given.channels;
    call.operation = given.function;
    call.type = given.type;
    return call;
}

Handle start(Recorder& to, void* context, const abi::Description& description) {
    const Handle parent = Handle::of(description.parent);
    switch (description.event) {
        case abi::kCollective:
            return to.enqueue(Handle::of(context), call_of(description.collective));
        case abi::kCopyEngineCollective:
            return to.enqueue(Handle::of(context), call_of(description.copy_engine_collective));
        case abi::kMessage:
            return to.enqueue(Handle::of(context), call_of(description.message));
        case abi::kKernelChannel:
            return to.start_channel(parent, description.kernel_channel.channel, description.kernel_channel.at_ns);
        case abi::kProxyOperation:
            // A proxy also works for other processes (PXN), whose handles say nothing here.
            return description.proxy_operation.pid == getpid() ? to.start_proxy_operation(parent) : Handle{};
        case abi::kProxyStep:
            return to.start_step(parent);
        default:
            return {};
    }
}

abi::Result start_event(void* context, void** event, abi::Description* description) {
    if (event == nullptr) {
        return abi::kSuccess;
    }
    *event = nullptr;
    return guarded([&](Recorder& to) {
        const Handle handle = description == nullptr ? Handle{} : start(to, context, *description);
        if (handle.kind != HandleKind::kNone) {
            *event = handle.pack();
        }
    });
}

abi::Result stop_event(void* event) {
    return guarded([&](Recorder& to) {
        const Handle handle = Handle::of(event);
        switch (handle.kind) {
            case HandleKind::kOperation:
                return to.end_launch(handle);
            case HandleKind::kProxyOperation:
                return to.end_proxy_operation(handle);
            case HandleKind::kProxyStep:
                return to.end_step(handle);
            default:  // a channel's end is told with its time, before this
                return;
        }
    });
}

Wait wait_of(int state) {
    switch (state) {
        case abi::kSendWaitsForGpu:
        case abi::kReceiveFlushes:
        case abi::kReceiveWaitsForGpu:
            return Wait::kGpu;
        case abi::kSendWaitsForPeer:
            return Wait::kPeer;
        case abi::kSendWaitsForNetwork:
            return Wait::kNetwork;
        case abi::kReceiveWaitsForNetwork:
            return Wait::kData;
        default:
            return Wait::kNothing;
    }
}

abi::Result record_event_state(void* event, int state, abi::StateArguments* arguments) {
    return guarded([&](Recorder& to) {
        const Handle handle = Handle::of(event);
        if (handle.kind == HandleKind::kChannel && state == abi::kKernelChannelStops && arguments != nullptr) {
            to.stop_channel(handle, arguments->at_ns);
        } else if (handle.kind == HandleKind::kProxyStep && wait_of(state) != Wait::kNothing) {
            to.enter(handle, wait_of(state), arguments == nullptr ? 0 : arguments->bytes);
        }
    });
}

abi::Result finalize(void* context) {
    return guarded([&](Recorder& to) { to.close_communicator(Handle::of(context)); });
}

}  // namespace

const abi::Plugin kPlugin = {"megatronapp", init, start_event, stop_event, record_event_state, finalize};

}  // namespace megatronapp::nccl
