// A rank's end of the shared memory: an anonymous file of fixed size, whose descriptor the agent gets.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <system_error>

#include "common/layout.h"

namespace megatronapp::common {

class Segment {
public:
    static constexpr std::size_t kLeastRingBytes = 4096;
    static constexpr std::size_t kMostRingBytes = std::size_t{1} << 29;
    static constexpr std::size_t kMostBulkBytes = std::size_t{1} << 28;

    // `thread`: the kernel's id of the training thread; `bulk_bytes` 0: no ring of frames; `table_bytes`, a multiple of
    // 64: a section that its owner lays out. Throws std::invalid_argument for a ring that is no power of two,
    // std::system_error when there is no memory.
    Segment(
        std::uint32_t frontier_entries, std::size_t ring_bytes, std::uint32_t thread, std::size_t bulk_bytes = 0,
        std::size_t table_bytes = 0) {
        if (!is_ring(ring_bytes, kMostRingBytes)) {
            throw std::invalid_argument("a ring must be a power of two of 4 KiB to 512 MiB");
        }
        if (bulk_bytes != 0 && !is_ring(bulk_bytes, kMostBulkBytes)) {
            throw std::invalid_argument("a ring of frames must be a power of two of 4 KiB to 256 MiB");
        }
        const std::size_t control = sizeof(Header) + sizeof(State);
        const std::size_t frontiers = control + sizeof(Control);
        const std::size_t ring = frontiers + sizeof(FrontiersHeader) + frontier_entries * sizeof(FrontierEntry);
        const std::size_t end = ring + sizeof(RingHeader) + ring_bytes;
        const std::size_t table = bulk_bytes == 0 ? end : end + sizeof(RingHeader) + bulk_bytes;
        bytes_ = table + table_bytes;
        make_file(table_bytes == 0 ? "megatronapp-segment" : "megatronapp-operations");
        Header& header = *at<Header>(0);
        header.layout = kLayout;
        header.pid = static_cast<std::uint32_t>(getpid());
        header.thread = thread;
        header.state = sizeof(Header);
        header.control = control;
        header.frontiers = frontiers;
        header.frontier_entries = frontier_entries;
        header.frontier_entry_bytes = sizeof(FrontierEntry);
        header.ring = ring;
        header.ring_bytes = ring_bytes;
        header.bulk = bulk_bytes == 0 ? 0 : end;
        header.bulk_bytes = bulk_bytes;
        header.table = table_bytes == 0 ? 0 : table;
        header.table_bytes = table_bytes;
        std::memcpy(header.magic, kMagic, sizeof kMagic);
        offsets_ = {header.state, header.control, header.frontiers, header.ring, header.bulk, header.table};
    }

    ~Segment() {
        munmap(memory_, bytes_);
        close(descriptor_);
    }
    Segment(const Segment&) = delete;
    Segment& operator=(const Segment&) = delete;

    int descriptor() const { return descriptor_; }
    State& state() const { return *at<State>(offsets_.state); }
    const Control& control() const { return *at<Control>(offsets_.control); }
    FrontiersHeader& frontiers() const { return *at<FrontiersHeader>(offsets_.frontiers); }
    FrontierEntry* entries() const { return at<FrontierEntry>(offsets_.frontiers + sizeof(FrontiersHeader)); }
    RingHeader& ring() const { return *at<RingHeader>(offsets_.ring); }
    char* ring_data() const { return at<char>(offsets_.ring + sizeof(RingHeader)); }
    // Only where there is one.
    RingHeader& bulk() const { return *at<RingHeader>(offsets_.bulk); }
    char* table() const { return at<char>(offsets_.table); }
    char* bulk_data() const { return at<char>(offsets_.bulk + sizeof(RingHeader)); }

    // In a forked child: what it writes goes nowhere, since the segment has one writer. Safe in a handler of
    // pthread_atfork.
    void leave_to_parent() const {
        mmap(memory_, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    }

private:
    struct Offsets {
        std::uint64_t state, control, frontiers, ring, bulk, table;
    };

    static bool is_ring(std::size_t bytes, std::size_t most) {
        return bytes >= kLeastRingBytes && bytes <= most && (bytes & (bytes - 1)) == 0;
    }

    template <typename Type>
    Type* at(std::uint64_t offset) const {
        return reinterpret_cast<Type*>(static_cast<char*>(memory_) + offset);
    }

    void make_file(const char* name) {
        descriptor_ = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
        if (descriptor_ < 0) {
            throw std::system_error(errno, std::generic_category(), "can't make shared memory");
        }
        // Taken now: memory that is missing later would end the process with SIGBUS.
        int number = posix_fallocate(descriptor_, 0, static_cast<off_t>(bytes_));
        if (number == 0 && fcntl(descriptor_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
            number = errno;
        }
        if (number == 0) {
            memory_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0);
            number = memory_ == MAP_FAILED ? errno : 0;
        }
        if (number != 0) {
            close(descriptor_);
            throw std::system_error(
                number, std::generic_category(),
                "no shared memory of " + std::to_string(bytes_) + " bytes (raise the memory or file size limit)");
        }
    }

    int descriptor_ = -1;
    void* memory_ = nullptr;
    std::size_t bytes_ = 0;
    // The header is for the agent: what this process needs of it is its own.
    Offsets offsets_{};
};

}  // namespace megatronapp::common
