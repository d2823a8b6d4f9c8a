#include "lanes/cuda_ipc.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace megatronapp::rdma {

namespace {

constexpr std::size_t kCopyStreams = 4;
constexpr std::size_t kMostMappings = 256;

// What the receiver's lane tells the sender's.
struct Target {
    OwnMemory::Place place;
    std::uint64_t stream;
    std::uint32_t slot;
    std::uint32_t value;
};
static_assert(sizeof(Target) <= kLaneBytes);

}  // namespace

// ---- flags

MappedFlags::MappedFlags(StreamFlags* flags, std::size_t count) : flags_(flags) {
    const CudaDriver& driver = CudaDriver::get();
    check_cuda(
        driver.host_register(flags, count * sizeof(StreamFlags), CudaDriver::kPortableMapped), "cuMemHostRegister");
    check_cuda(driver.host_device_pointer(&device_, flags, 0), "cuMemHostGetDevicePointer");
}

MappedFlags::~MappedFlags() { CudaDriver::get().host_unregister(flags_); }

Flag MappedFlags::at(std::atomic<std::uint32_t>* flag, std::uint32_t value) const {
    const auto offset = reinterpret_cast<char*>(flag) - reinterpret_cast<char*>(flags_);
    return Flag{flag, device_ + static_cast<std::uint64_t>(offset), value};
}

FlagSlots::FlagSlots() {
    for (std::size_t slot = 0; slot < kFlagSlots; ++slot) {
        free_.push_back(slot);
    }
}

FlagSlots::Taken FlagSlots::take() {
    if (free_.empty()) {
        throw std::runtime_error("too many messages of GPU memory are open: wait for some of the 1024 first");
    }
    const std::size_t slot = free_.front();
    free_.pop_front();
    return {slot, ++values_[slot]};
}

// ---- the peer's memory

OpenedMemory::~OpenedMemory() {
    for (const auto& entry : mappings_) {
        driver_.ipc_close(entry.second.address);
    }
}

CudaAddress OpenedMemory::open(std::uint64_t buffer, const CudaIpcHandle& handle) {
    const auto found = mappings_.find(buffer);
    if (found != mappings_.end()) {
        by_use_.splice(by_use_.end(), by_use_, found->second.place);
        return found->second.address;
    }
    // In this device's context: opened in the owner's, the copies would go through the host.
    CudaAddress address = 0;
    check_cuda(driver_.ipc_open(&address, handle, CudaDriver::kLazyPeerAccess), "cuIpcOpenMemHandle");
    mappings_[buffer] = {address, by_use_.insert(by_use_.end(), buffer)};
    return address;
}

void OpenedMemory::trim() {
    while (mappings_.size() > kMostMappings) {
        const auto oldest = mappings_.find(by_use_.front());
        driver_.ipc_close(oldest->second.address);
        mappings_.erase(oldest);
        by_use_.pop_front();
    }
}

// ---- this process's memory

OwnMemory::Place OwnMemory::find(CudaAddress address) {
    unsigned capable = 0;
    std::uint64_t buffer = 0;
    CudaAddress base = 0;
    int names[] = {CudaDriver::kIpcCapable, CudaDriver::kBufferId, CudaDriver::kRangeStart};
    void* values[] = {&capable, &buffer, &base};
    check_cuda(driver_.pointer_attributes(3, names, values, address), "cuPointerGetAttributes");
    if (capable == 0) {
        throw std::runtime_error(
            "no other process can open this GPU memory (expandable segments): receive into a "
            "(shape, dtype, device), whose memory the engine takes from its own pool");
    }
    auto found = handles_.find(buffer);
    if (found == handles_.end()) {
        if (handles_.size() >= kMostMappings) {
            handles_.clear();
        }
        CudaIpcHandle handle;
        check_cuda(driver_.ipc_get(&handle, base), "cuIpcGetMemHandle");
        found = handles_.emplace(buffer, handle).first;
    }
    return {found->second, buffer, address - base};
}

// ---- the lane

CudaIpcLane::CudaIpcLane(Matcher& core, const Segment& inbound, const Segment& outbound)
    : core_(core), driver_(CudaDriver::get()), in_(inbound->flags, kFlagSlots), out_(outbound->flags, kFlagSlots),
      sent_memory_(new StreamFlags[kFlagSlots]()), own_(driver_), opened_(driver_), streams_(kCopyStreams) {
    check_cuda(driver_.context_get(&context_), "cuCtxGetCurrent");
    sent_ = std::make_unique<MappedFlags>(sent_memory_.get(), kFlagSlots);
    int least = 0, greatest = 0;
    check_cuda(driver_.priorities(&least, &greatest), "cuCtxGetStreamPriorityRange");
    for (CopyStream& each : streams_) {
        check_cuda(driver_.stream_create(&each.stream, CudaDriver::kNonBlocking, greatest), "cuStreamCreate");
    }
}

CudaIpcLane::~CudaIpcLane() {
    enter();
    for (const CopyStream& each : streams_) {
        driver_.stream_synchronize(each.stream);
        driver_.stream_destroy(each.stream);
    }
    for (void* event : events_) {
        driver_.event_destroy(event);
    }
}

void CudaIpcLane::enter() { driver_.context_set(context_); }

bool CudaIpcLane::reached(const Flag& flag) {
    return static_cast<std::int32_t>(flag.host->load(std::memory_order_acquire) - flag.value) >= 0;
}

void CudaIpcLane::reach(const Flag& flag) {
    if (!reached(flag)) {
        flag.host->store(flag.value, std::memory_order_release);
    }
}

void CudaIpcLane::wait(const Flag& flag, void* stream) {
    enter();
    check_cuda(driver_.stream_wait(stream, flag.device, flag.value, CudaDriver::kAtLeast), "cuStreamWaitValue32");
}

void* CudaIpcLane::take_event() {
    void* event = nullptr;
    if (!events_.empty()) {
        event = events_.back();
        events_.pop_back();
    } else {
        check_cuda(driver_.event_create(&event, CudaDriver::kNoTiming), "cuEventCreate");
    }
    return event;
}

void CudaIpcLane::posted(Operation& send) {
    enter();
    send.event = take_event();
    check_cuda(driver_.event_record(send.event, send.stream), "cuEventRecord");
    const FlagSlots::Taken taken = send_slots_.take();
    send.flag = sent_->done(taken.slot, taken.value);
    slots_[send.id] = taken.slot;
}

void CudaIpcLane::expect(const OperationPtr& receive, Message& message) {
    enter();
    Target target{};
    if (receive->what.bytes != 0) {
        target.place = own_.find(reinterpret_cast<CudaAddress>(receive->data));
    }
    const FlagSlots::Taken taken = receive_slots_.take();
    target.stream = reinterpret_cast<std::uint64_t>(receive->stream);
    target.slot = static_cast<std::uint32_t>(taken.slot);
    target.value = taken.value;
    slots_[receive->id] = taken.slot;
    receive->flag = in_.done(taken.slot, taken.value);
    const Flag ready = in_.ready(taken.slot, taken.value);
    check_cuda(driver_.stream_write(receive->stream, ready.device, ready.value, 0), "cuStreamWriteValue32");
    std::memcpy(message.lane, &target, sizeof target);
    receiving_.push_back(receive);
}

void CudaIpcLane::start(const OperationPtr& send, const Message& ready) {
    enter();
    Target target;
    std::memcpy(&target, ready.lane, sizeof target);
    if (target.slot >= kFlagSlots) {
        return core_.finished(send, Status::kCorrupt, "the peer names a flag that is not there");
    }
    const CudaAddress base = send->what.bytes == 0 ? 0 : opened_.open(target.place.buffer, target.place.handle);
    const Matched matched{send, base + target.place.offset, out_.ready(target.slot, target.value),
                          out_.done(target.slot, target.value), target.stream};
    if (!try_launch(matched)) {
        waiting_.push_back(matched);
    }
}

// Whether it can't run before the other anyway: both ends have posted it later to the same streams.
bool CudaIpcLane::comes_after(const Matched& matched, const Matched& earlier) {
    return matched.receive_stream == earlier.receive_stream && matched.send->stream == earlier.send->stream &&
           matched.send->receive > earlier.send->receive && matched.send->id > earlier.send->id;
}

// A message that may have to wait on the GPU gets a stream of its own or one behind a message that comes before it anyway, and
// one stream is always left for those that can run: else two ranks could wait for each other, each with the message that
// the other needs behind another.
CudaIpcLane::CopyStream* CudaIpcLane::stream_for(const Matched& matched, bool runs_at_once) {
    CopyStream *free = nullptr, *behind = nullptr;
    std::size_t free_count = 0;
    for (std::size_t i = 0; i < streams_.size(); ++i) {
        CopyStream& each = streams_[(next_stream_ + i) % streams_.size()];
        if (!each.blocked()) {
            ++free_count;
            free = free == nullptr ? &each : free;
        } else if (behind == nullptr && comes_after(matched, each.last)) {
            behind = &each;
        }
    }
    ++next_stream_;
    return runs_at_once || free_count > 1 ? free : behind;
}

bool CudaIpcLane::try_launch(const Matched& matched) {
    const Operation& send = *matched.send;
    const bool ready = reached(matched.ready);
    CopyStream* chosen = stream_for(matched, false);
    if (chosen != nullptr) {
        chosen->last = matched;
        check_cuda(driver_.stream_wait_event(chosen->stream, send.event, 0), "cuStreamWaitEvent");
        if (!ready) {
            wait(matched.ready, chosen->stream);
        }
    } else if (ready && driver_.event_query(send.event) == 0) {  // asked last: it costs more than to wait
        chosen = stream_for(matched, true);
    }
    if (chosen == nullptr) {
        return false;
    }
    if (send.what.bytes != 0) {
        const auto from = reinterpret_cast<CudaAddress>(send.data);
        check_cuda(driver_.copy(matched.to, from, send.what.bytes, chosen->stream), "cuMemcpyAsync");
    }
    CudaStreamWrite writes[2];
    writes[0].address = matched.done.device;
    writes[0].value = matched.done.value;
    writes[1].address = send.flag.device;
    writes[1].value = send.flag.value;
    check_cuda(driver_.stream_writes(chosen->stream, 2, writes, 0), "cuStreamBatchMemOp");
    launched_.push_back(matched);
    moving_.push_back(matched.send);
    return true;
}

template <typename Operations>
bool CudaIpcLane::finish_reached(Operations& operations) {
    bool moved = false;
    for (std::size_t i = 0; i < operations.size();) {
        const OperationPtr operation = operations[i];
        if (operation->pending() && !reached(operation->flag)) {
            ++i;
            continue;
        }
        operations.erase(operations.begin() + static_cast<std::ptrdiff_t>(i));
        core_.finished(operation, Status::kDone);
        moved = true;
    }
    return moved;
}

bool CudaIpcLane::progress() {
    bool moved = finish_reached(receiving_);
    if (finish_reached(moving_)) {
        moved = true;
        launched_.erase(
            std::remove_if(
                launched_.begin(), launched_.end(), [](const Matched& each) { return !each.send->pending(); }),
            launched_.end());
        if (launched_.empty()) {
            opened_.trim();
        }
    }
    if (!waiting_.empty()) {
        enter();
    }
    for (std::size_t i = waiting_.size(); i > 0; --i) {
        const Matched matched = waiting_.front();
        waiting_.pop_front();
        if (try_launch(matched)) {
            moved = true;
        } else {
            waiting_.push_back(matched);
        }
    }
    return moved;
}

void CudaIpcLane::ended(Operation& operation) {
    const auto found = slots_.find(operation.id);
    if (found == slots_.end()) {
        return;
    }
    if (operation.status.load() != Status::kDone) {
        reach(operation.flag);
    }
    (operation.direction == Direction::kSend ? send_slots_ : receive_slots_).give_back(found->second);
    slots_.erase(found);
    if (operation.event != nullptr) {
        events_.push_back(operation.event);
        operation.event = nullptr;
    }
}

// Streams can't be stopped from waiting: what they wait for is written by the host instead.
void CudaIpcLane::release() {
    for (const Matched& matched : launched_) {
        reach(matched.ready);
    }
    waiting_.clear();
}

}  // namespace megatronapp::rdma
