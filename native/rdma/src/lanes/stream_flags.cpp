#include "lanes/stream_flags.h"

#include <algorithm>
#include <mutex>
#include <vector>

namespace megatronapp::rdma {

void reach(const Flag& flag) {
    if (!reached(flag)) {
        flag.host->store(flag.value, std::memory_order_release);
    }
}

MappedFlags::MappedFlags(StreamFlags* flags) : flags_(flags) {
    const CudaDriver& driver = CudaDriver::get();
    check_cuda(driver.host_register(flags, kFlagSlots * sizeof(StreamFlags), CudaDriver::kPortableMapped),
               "cuMemHostRegister");
    check_cuda(driver.host_device_pointer(&device_, flags, 0), "cuMemHostGetDevicePointer");
}

MappedFlags::~MappedFlags() { CudaDriver::get().host_unregister(flags_); }

Flag MappedFlags::at(std::atomic<std::uint32_t>* flag, std::uint32_t value) const {
    const auto offset = reinterpret_cast<char*>(flag) - reinterpret_cast<char*>(flags_);
    return Flag{flag, device_ + static_cast<std::uint64_t>(offset), value};
}

// ---- this process' own

struct OwnFlags::Table {
    explicit Table(void* of) : context(of) {}

    void* context;
    std::array<StreamFlags, kFlagSlots> flags{};
    std::array<std::uint32_t, kFlagSlots> values{};
    MappedFlags mapped{flags.data()};

    // Never destroyed: see above.
    static std::vector<std::unique_ptr<Table>>& idle() {
        static auto* tables = new std::vector<std::unique_ptr<Table>>;
        return *tables;
    }
    static std::mutex& lock() {
        static auto* mutex = new std::mutex;
        return *mutex;
    }
};

OwnFlags::OwnFlags(void* context) {
    {
        const std::lock_guard<std::mutex> guard(Table::lock());
        auto& idle = Table::idle();
        const auto found =
            std::find_if(idle.begin(), idle.end(), [&](const auto& table) { return table->context == context; });
        if (found != idle.end()) {
            table_ = std::move(*found);
            idle.erase(found);
        }
    }
    if (table_ == nullptr) {
        table_ = std::make_unique<Table>(context);
    }
}

OwnFlags::~OwnFlags() {
    for (std::size_t slot = 0; slot < kFlagSlots; ++slot) {
        reach(table_->mapped.ready(slot, table_->values[slot]));
        reach(table_->mapped.done(slot, table_->values[slot]));
    }
    const std::lock_guard<std::mutex> guard(Table::lock());
    Table::idle().push_back(std::move(table_));
}

OwnFlags::Pair OwnFlags::next(std::size_t slot) {
    const std::uint32_t value = ++table_->values[slot];
    return {table_->mapped.ready(slot, value), table_->mapped.done(slot, value)};
}

FlagSlots::FlagSlots() {
    for (std::size_t slot = 0; slot < kFlagSlots; ++slot) {
        free_.push_back(slot);
    }
}

std::optional<std::size_t> FlagSlots::take() {
    if (free_.empty()) {
        return std::nullopt;
    }
    const std::size_t slot = free_.front();
    free_.pop_front();
    return slot;
}

bool OperationFlags::take(Operation& operation) {
    if (operation.flag.host != nullptr) {
        return true;
    }
    const std::optional<std::size_t> slot = slots_.take();
    if (slot) {
        const OwnFlags::Pair pair = flags_.next(*slot);
        slots_of_[operation.id] = {*slot, pair.ready};
        operation.flag = pair.done;
    }
    return slot.has_value();
}

Flag OperationFlags::ready(const Operation& operation) const { return slots_of_.at(operation.id).ready; }

void OperationFlags::give_back(Operation& operation) {
    const auto found = slots_of_.find(operation.id);
    if (found != slots_of_.end()) {
        reach(found->second.ready);
        reach(operation.flag);
        slots_.give_back(found->second.slot);
        slots_of_.erase(found);
    }
}

}  // namespace megatronapp::rdma
