#include "lanes/gpu_memory.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <poll.h>
#include <stdexcept>
#include <sys/socket.h>
#include <system_error>
#include <unistd.h>

namespace megatronapp::rdma {

namespace {

constexpr std::size_t kLeastBlockBytes = 4 << 10;
constexpr std::size_t kSmallBytes = 1 << 20;   // many blocks of one chunk
constexpr std::size_t kMediumBytes = 16 << 20;  // some
constexpr std::size_t kSmallBlocks = 16, kMediumBlocks = 4;
constexpr std::size_t kStillKeptBytes = 128 << 20;  // beyond the limit, of what was needed at once: it will be again
constexpr std::size_t kWasted = 2;  // a free block is taken that is at most so many times too large
constexpr int kHandOverMilliseconds = 1000;

std::atomic<std::size_t> made_bytes_total{0};

CudaAllocation here() {
    CudaAllocation where;
    check_cuda(CudaDriver::get().device_get(&where.device), "cuCtxGetDevice");
    return where;
}

std::size_t block_bytes_for(std::size_t bytes) {
    if (bytes > kSmallBytes) {
        return (bytes + kSmallBytes - 1) / kSmallBytes * kSmallBytes;
    }
    std::size_t block = kLeastBlockBytes;
    while (block < bytes) {
        block *= 2;
    }
    return block;
}

std::size_t chunk_bytes_for(std::size_t block_bytes) {
    if (block_bytes <= kSmallBytes) {
        return block_bytes * kSmallBlocks;
    }
    return block_bytes <= kMediumBytes ? block_bytes * kMediumBlocks : block_bytes;
}

}  // namespace

// ---- pages

std::size_t GpuPages::rounded(std::size_t bytes) {
    const CudaAllocation where = here();
    std::size_t granularity = 0;
    check_cuda(CudaDriver::get().granularity(&granularity, &where, 0), "cuMemGetAllocationGranularity");
    return (bytes + granularity - 1) / granularity * granularity;
}

GpuPages GpuPages::make(std::size_t bytes) {
    const CudaAllocation where = here();
    std::uint64_t handle = 0;
    check_cuda(CudaDriver::get().memory_create(&handle, bytes, &where, 0), "cuMemCreate (memory to receive into)");
    return GpuPages(handle, bytes, true);
}

GpuPages GpuPages::open(int descriptor, std::size_t bytes) {
    std::uint64_t handle = 0;
    void* named = reinterpret_cast<void*>(static_cast<std::intptr_t>(descriptor));
    check_cuda(CudaDriver::get().memory_import(&handle, named, CudaDriver::kFileDescriptor),
               "cuMemImportFromShareableHandle");
    return GpuPages(handle, bytes, false);
}

GpuPages::GpuPages(std::uint64_t handle, std::size_t bytes, bool made) : handle_(handle), bytes_(bytes), made_(made) {
    const CudaDriver& driver = CudaDriver::get();
    made_bytes_total += made_ ? bytes_ : 0;
    try {
        check_cuda(driver.address_reserve(&address_, bytes_, 0, 0, 0), "cuMemAddressReserve");
        check_cuda(driver.map(address_, bytes_, 0, handle_, 0), "cuMemMap");
        mapped_ = true;
        CudaAccess access;
        access.device = here().device;  // its own device's way to them, also where they are another's
        check_cuda(driver.set_access(address_, bytes_, &access, 1), "cuMemSetAccess");
    } catch (...) {
        give_up();
        throw;
    }
}

GpuPages::GpuPages(GpuPages&& other) noexcept
    : handle_(other.handle_), bytes_(other.bytes_), made_(other.made_), address_(std::exchange(other.address_, 0)),
      mapped_(std::exchange(other.mapped_, false)) {
    other.handle_ = 0;
    other.bytes_ = 0;
}

GpuPages::~GpuPages() { give_up(); }

void GpuPages::give_up() {
    const CudaDriver& driver = CudaDriver::get();
    if (mapped_) {
        driver.unmap(address_, bytes_);
    }
    if (address_ != 0) {
        driver.address_free(address_, bytes_);
    }
    if (bytes_ != 0) {
        driver.memory_release(handle_);
        made_bytes_total -= made_ ? bytes_ : 0;
        bytes_ = 0;
    }
}

int GpuPages::share() const {
    int descriptor = -1;
    check_cuda(CudaDriver::get().memory_export(&descriptor, handle_, CudaDriver::kFileDescriptor, 0),
               "cuMemExportToShareableHandle");
    return descriptor;
}

std::size_t GpuPages::made_bytes() { return made_bytes_total; }

// ---- from process to process

ChunkSocket::ChunkSocket(int descriptor) : descriptor_(fcntl(descriptor, F_DUPFD_CLOEXEC, 0)) {
    if (descriptor_ < 0) {
        throw std::system_error(errno, std::generic_category(), "the socket for GPU memory");
    }
}

ChunkSocket::~ChunkSocket() { close(descriptor_); }

void ChunkSocket::hand_over(const Header& chunk, int descriptor) {
    Header body = chunk;
    iovec part{&body, sizeof body};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof descriptor)] = {};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof descriptor);
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
    for (int tries = 0; sendmsg(descriptor_, &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0; ++tries) {
        pollfd room{descriptor_, POLLOUT, 0};
        if (errno != EAGAIN || tries > 0 || poll(&room, 1, kHandOverMilliseconds) <= 0) {
            throw std::runtime_error("the peer does not take the GPU memory that it is handed: " +
                                     std::generic_category().message(errno));
        }
    }
}

std::optional<ChunkSocket::Received> ChunkSocket::receive() {
    Received received{{}, -1};
    iovec part{&received.header, sizeof received.header};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof received.descriptor)] = {};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    if (recvmsg(descriptor_, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) != sizeof received.header) {
        return std::nullopt;
    }
    const cmsghdr* header = CMSG_FIRSTHDR(&message);
    if (header == nullptr || header->cmsg_type != SCM_RIGHTS ||
        header->cmsg_len != CMSG_LEN(sizeof received.descriptor)) {
        throw std::runtime_error("no descriptor came with the peer's GPU memory: too many are open");
    }
    std::memcpy(&received.descriptor, CMSG_DATA(header), sizeof received.descriptor);
    return received;
}

// ---- this rank's chunks

ReceivePool::ReceivePool(int socket, std::size_t limit_bytes) : socket_(socket), limit_bytes_(limit_bytes) {
    add(kLeastBlockBytes);  // now, so that what can't be done is known when the ranks connect
}

ReceivePool::Chunk& ReceivePool::add(std::size_t block_bytes) {
    const std::size_t bytes = GpuPages::rounded(chunk_bytes_for(block_bytes));
    trim(bytes, limit_bytes_);
    const std::uint64_t number = next_chunk_++;
    Chunk& chunk = chunks_.try_emplace(number, Chunk{GpuPages::make(bytes), {}}).first->second;
    held_bytes_ += bytes;
    for (std::size_t offset = 0; offset + block_bytes <= bytes; offset += block_bytes) {
        Block block;
        block.chunk = number;
        block.offset = offset;
        block.bytes = block_bytes;
        block.address = chunk.pages.address() + offset;
        chunk.blocks.push_back(block);
    }
    try {
        const int descriptor = chunk.pages.share();
        try {
            socket_.hand_over({number, bytes}, descriptor);
        } catch (...) {
            close(descriptor);
            throw;
        }
        close(descriptor);
    } catch (...) {
        chunks_.erase(number);
        held_bytes_ -= bytes;
        throw;
    }
    return chunk;
}

Block* ReceivePool::find_free(std::size_t bytes) {
    Block* best = nullptr;
    for (auto& [number, chunk] : chunks_) {
        const std::size_t size = chunk.blocks.front().bytes;
        if (size < bytes || size > kWasted * bytes || chunk.messages == chunk.blocks.size() ||
            (best != nullptr && best->bytes <= size)) {
            continue;
        }
        for (Block& block : chunk.blocks) {
            if (block.messages == 0) {
                best = &block;
                break;
            }
        }
    }
    return best;
}

Block* ReceivePool::find_landing(std::size_t bytes, void* stream) {
    for (auto& [number, chunk] : chunks_) {
        for (Block& block : chunk.blocks) {
            if (block.landing && block.stream == stream && block.bytes >= bytes && block.bytes <= kWasted * bytes) {
                return &block;
            }
        }
    }
    return nullptr;
}

Block* ReceivePool::claim(Block* block) {
    Chunk& chunk = chunks_.at(block->chunk);
    chunk.messages += block->messages == 0;
    chunk.used = ++takes_;
    ++block->messages;
    block->landing = false;
    return block;
}

ReceivePool::Place ReceivePool::take(std::size_t bytes, void* stream) {
    const std::size_t needed = block_bytes_for(bytes);
    if (Block* block = find_free(needed)) {
        return {claim(block), false};
    }
    trim(chunk_bytes_for(needed), limit_bytes_);
    if (held_bytes_ + chunk_bytes_for(needed) > limit_bytes_) {
        if (Block* block = find_landing(needed, stream)) {
            return {claim(block), true};
        }
    }
    return {claim(&add(needed).blocks.front()), false};
}

void ReceivePool::landing(Block* block, void* stream) {
    block->landing = true;
    block->stream = stream;
}

void ReceivePool::give_back(Block* block) {
    Chunk& chunk = chunks_.at(block->chunk);
    if (--block->messages == 0) {
        block->landing = false;
        --chunk.messages;
        trim(0, limit_bytes_ + std::min(limit_bytes_, kStillKeptBytes));
    }
}

void ReceivePool::trim(std::size_t needed_bytes, std::size_t limit_bytes) {
    while (held_bytes_ + needed_bytes > limit_bytes) {
        auto oldest = chunks_.end();
        for (auto each = chunks_.begin(); each != chunks_.end(); ++each) {
            const bool idle = each->second.messages == 0;
            if (idle && (oldest == chunks_.end() || each->second.used < oldest->second.used)) {
                oldest = each;
            }
        }
        if (oldest == chunks_.end()) {
            return;
        }
        held_bytes_ -= oldest->second.pages.bytes();
        ended_.push_back(oldest->first);
        chunks_.erase(oldest);
    }
}

// ---- the peer's chunks

void PeerChunks::take() {
    while (const std::optional<ChunkSocket::Received> received = socket_.receive()) {
        try {
            chunks_.emplace(received->header.chunk, GpuPages::open(received->descriptor, received->header.bytes));
        } catch (...) {
            close(received->descriptor);
            throw;
        }
        close(received->descriptor);
    }
}

CudaAddress PeerChunks::find(std::uint64_t chunk, std::uint64_t offset, std::size_t bytes) {
    auto found = chunks_.find(chunk);
    if (found == chunks_.end()) {
        take();
        found = chunks_.find(chunk);
    }
    if (found == chunks_.end() || offset > found->second.bytes() || bytes > found->second.bytes() - offset) {
        throw std::runtime_error("the peer names GPU memory that it did not hand over");
    }
    return found->second.address() + offset;
}

}  // namespace megatronapp::rdma
