#include "core/recorder.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "api/abi.h"
#include "common/clock.h"

namespace megatronapp::nccl {

namespace {

using common::now_ns;
using Guard = std::lock_guard<std::mutex>;

// An operation whose times are not all known is kept for so many more of its lane: NCCL tells of them out of order.
constexpr std::uint64_t kKept = 64;

std::size_t table_bytes(std::uint32_t lanes) { return sizeof(LanesHeader) + lanes * sizeof(Lane); }

template <std::size_t Size>
void copy_text(char (&into)[Size], const char* text) {
    if (text != nullptr) {
        std::memcpy(into, text, strnlen(text, Size));
    }
}

}  // namespace

Recorder::Recorder(std::size_t ring_bytes, std::uint32_t lanes)
    : segment_(0, ring_bytes, static_cast<std::uint32_t>(syscall(SYS_gettid)), 0, table_bytes(lanes)),
      ring_(segment_.ring(), segment_.ring_data(), ring_bytes),
      lanes_(
          *reinterpret_cast<LanesHeader*>(segment_.table()),
          reinterpret_cast<Lane*>(segment_.table() + sizeof(LanesHeader)), lanes),
      open_(lanes) {}

void Recorder::set_mask(std::uint32_t mask) {
    const Guard guard(mutex_);
    if (mask_ == 0 && mask != 0) {
        lanes_.switch_on();
    }
    mask_ = mask;
    lanes_.set_mask(mask);
    for (std::uint32_t i = 0; i < kCommunicators; ++i) {
        if (communicators_[i].mask != nullptr) {
            __atomic_store_n(communicators_[i].mask, static_cast<int>(mask), __ATOMIC_RELAXED);
        }
    }
}

Handle Recorder::add_communicator(
    std::uint64_t hash, const char* name, std::int32_t ranks, std::int32_t rank, int* mask) {
    const Guard guard(mutex_);
    if (mask != nullptr) {
        __atomic_store_n(mask, static_cast<int>(mask_), __ATOMIC_RELAXED);
    }
    std::uint32_t index;
    Communicator* communicator = communicators_.take(index);
    if (communicator == nullptr) {
        return {};
    }
    communicator->hash = hash;
    communicator->name.assign(name == nullptr ? "" : name, name == nullptr ? 0 : strnlen(name, sizeof Lane::name));
    communicator->ranks = ranks;
    communicator->rank = rank;
    communicator->mask = mask;
    // A lane from the beginning: members are known by it before anything is called.
    lane_of(*communicator, {});
    return communicators_.handle(HandleKind::kCommunicator, index);
}

void Recorder::close_communicator(Handle handle) {
    const Guard guard(mutex_);
    Communicator* communicator =
        handle.kind == HandleKind::kCommunicator ? communicators_.find(handle) : nullptr;
    if (communicator == nullptr) {
        return;
    }
    for (const auto& [peer, lane] : communicator->lanes) {
        if (lane == lanes_.size()) {
            continue;
        }
        for (const std::uint32_t index : open_[lane].open) {
            if (operations_[index].through()) {
                record_end(index);
            }
            operations_.give_back(index);
        }
        open_[lane].open.clear();
        lanes_.close(lane);
    }
    communicator->mask = nullptr;
    communicators_.give_back(handle.index);
}

std::uint32_t Recorder::lane_of(Communicator& communicator, const Call& call) {
    const auto [found, added] = communicator.lanes.try_emplace({call.peer, call.direction}, lanes_.size());
    if (added) {
        found->second = lanes_.add(
            {communicator.hash, communicator.name, communicator.ranks, communicator.rank, call.peer, call.direction});
    }
    return found->second;
}

Handle Recorder::enqueue(Handle handle, const Call& call) {
    const std::int64_t now = now_ns();
    const Guard guard(mutex_);
    Communicator* communicator =
        handle.kind == HandleKind::kCommunicator ? communicators_.find(handle) : nullptr;
    if (communicator == nullptr) {
        return {};
    }
    const std::uint32_t lane = lane_of(*communicator, call);
    if (lane == lanes_.size()) {
        lanes_.lose_without_lane();
        return {};
    }
    Enqueued description{};
    const bool message = call.direction != Direction::kNone;
    description.number =
        message ? ++open_[lane].messages
                : communicator->numbers.next(call.operation == nullptr ? "" : call.operation, call.sequence);
    description.lane = lane;
    description.root = call.root;
    description.sequence = message ? description.number : call.sequence;
    description.count = call.count;
    description.at_ns = now;
    description.channels = call.channels;
    description.timed = call.timed && (mask_ & abi::kKernelChannel) != 0 ? 1 : 0;
    copy_text(description.operation, call.operation);
    copy_text(description.type, call.type);
    copy_text(description.algorithm, call.algorithm);
    copy_text(description.protocol, call.protocol);
    lanes_.enqueue(description);
    write(common::RecordKind::kEnqueued, description);
    std::uint32_t index;
    Operation* operation = operations_.take(index);
    if (operation == nullptr) {
        lanes_.lose(lane);
        return {};
    }
    operation->description = description;
    open_[lane].open.push_back(index);
    return operations_.handle(HandleKind::kOperation, index);
}

void Recorder::end_launch(Handle handle) {
    const std::int64_t now = now_ns();
    const Guard guard(mutex_);
    Operation* operation = operations_.find(handle);
    if (operation == nullptr || operation->launched) {
        return;
    }
    operation->launched = true;
    operation->launched_ns = now;
    progress(handle.index);
}

Handle Recorder::start_channel(Handle handle, std::uint32_t channel, std::uint64_t at_ns) {
    const std::int64_t now = now_ns();
    const Guard guard(mutex_);
    Operation* operation = handle.kind == HandleKind::kOperation ? operations_.find(handle) : nullptr;
    if (operation == nullptr || channel >= kMostChannels || operation->started[channel]) {
        return {};
    }
    operation->started.set(channel);
    if (operation->start_ns == 0 || at_ns < operation->start_ns) {
        operation->start_ns = at_ns;
        operation->start_seen_ns = now;
    }
    lanes_.start(operation->description.lane, operation->number(), now);
    return {HandleKind::kChannel, channel, handle.index, handle.generation};
}

void Recorder::stop_channel(Handle handle, std::uint64_t at_ns) {
    const std::int64_t now = now_ns();
    const Guard guard(mutex_);
    Operation* operation = operations_.find(handle);
    if (operation == nullptr || !operation->started[handle.channel] || operation->stopped[handle.channel]) {
        return;
    }
    operation->stopped.set(handle.channel);
    if (at_ns >= operation->end_ns) {
        operation->end_ns = at_ns;
        operation->end_seen_ns = now;
    }
    progress(handle.index);
}

Handle Recorder::start_proxy_operation(Handle handle) {
    const Guard guard(mutex_);
    Operation* operation = handle.kind == HandleKind::kOperation ? operations_.find(handle) : nullptr;
    if (operation == nullptr) {
        return {};
    }
    ++operation->proxies;
    return {HandleKind::kProxyOperation, 0, handle.index, handle.generation};
}

void Recorder::end_proxy_operation(Handle handle) {
    const Guard guard(mutex_);
    Operation* operation = operations_.find(handle);
    if (operation == nullptr || operation->proxies == 0) {
        return;
    }
    --operation->proxies;
    progress(handle.index);
}

Handle Recorder::start_step(Handle handle) {
    const Guard guard(mutex_);
    std::uint32_t index;
    if (handle.kind != HandleKind::kProxyOperation || operations_.find(handle) == nullptr) {
        return {};
    }
    Step* step = steps_.take(index);
    if (step == nullptr) {
        return {};
    }
    step->operation = handle;
    return steps_.handle(HandleKind::kProxyStep, index);
}

void Recorder::enter(Handle handle, Wait wait, std::uint64_t bytes) {
    const std::int64_t now = now_ns();
    const Guard guard(mutex_);
    if (Step* step = steps_.find(handle)) {
        leave_wait(*step, now);
        step->wait = wait;
        step->since_ns = now;
        step->bytes = std::max(step->bytes, bytes);
        step->sends |= wait == Wait::kNetwork;
    }
}

void Recorder::end_step(Handle handle) {
    const std::int64_t now = now_ns();
    const Guard guard(mutex_);
    Step* step = steps_.find(handle);
    if (step == nullptr) {
        return;
    }
    leave_wait(*step, now);
    if (Operation* operation = operations_.find(step->operation)) {
        operation->network_bytes += step->bytes;
        operation->sent_bytes += step->sends ? step->bytes : 0;
    }
    steps_.give_back(handle.index);
}

void Recorder::leave_wait(Step& step, std::int64_t now_ns) {
    Operation* operation = step.wait == Wait::kNothing ? nullptr : operations_.find(step.operation);
    if (operation != nullptr) {
        operation->waited_ns[static_cast<std::uint32_t>(step.wait)] += static_cast<std::uint64_t>(now_ns - step.since_ns);
    }
}

// After NCCL has said something of an operation: what it moves in its lane.
void Recorder::progress(std::uint32_t index) {
    Operation& operation = operations_[index];
    if (!operation.through()) {
        return;
    }
    const std::uint32_t number = operation.description.lane;
    OpenLane& lane = open_[number];
    const std::uint64_t completed = std::max(operation.number(), lanes_.completed(number));
    const auto oldest = std::find_if(lane.open.begin(), lane.open.end(), [&](std::uint32_t other) {
        return operations_[other].number() > completed;
    });
    const Enqueued* left = oldest == lane.open.end() ? nullptr : &operations_[*oldest].description;
    const std::int64_t at_ns = operation.end_seen_ns != 0 ? operation.end_seen_ns : operation.launched_ns;
    lanes_.complete(number, operation.number(), at_ns, left);
    if (operation.whole() && !operation.recorded) {
        record_end(index);
    }
    release_old(lane, completed);
}

// Frees the operations at a lane's beginning whose end is recorded, or of which nothing more will come.
void Recorder::release_old(OpenLane& lane, std::uint64_t completed) {
    while (!lane.open.empty()) {
        const std::uint32_t index = lane.open.front();
        const Operation& operation = operations_[index];
        const bool old = operation.number() + kKept <= completed;
        if (!operation.recorded && !old) {
            return;
        }
        if (!operation.recorded) {
            record_end(index);
        }
        lane.open.pop_front();
        operations_.give_back(index);
    }
}

void Recorder::record_end(std::uint32_t index) {
    operations_[index].recorded = true;
    write(common::RecordKind::kCompleted, operations_[index].completed());
}

template <typename Record>
void Recorder::write(common::RecordKind kind, const Record& record) {
    std::memcpy(ring_.claim(kind, sizeof record), &record, sizeof record);
    ring_.publish();
}

}  // namespace megatronapp::nccl
