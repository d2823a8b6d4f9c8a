// GPU memory that a peer writes into, and the rule by which no late write reaches anything else:
//
//   A peer can write only into chunks that this engine made for this peer. A chunk is never used for anything else, and
//   ends with the connection. The program's own tensors are never shared: what has come is copied into them.
//
// A chunk is an allocation of the driver's virtual memory interface, handed to the peer as a file descriptor. Its pages go
// back to the driver when the last mapping of them is gone, this process' or the peer's, whichever is later: the driver
// counts. So a peer that is stopped, or late, or believes that the connection goes on, writes into pages that nobody else
// has; a process that dies takes its mappings with it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "drivers/cuda.h"

namespace megatronapp::rdma {

// Physical GPU memory, mapped into this process. With the context that is current on the calling thread.
class GpuPages {
public:
    // New pages. Throws std::runtime_error when there are none.
    static GpuPages make(std::size_t bytes);
    // Those behind a descriptor, which stays the caller's.
    static GpuPages open(int descriptor, std::size_t bytes);
    ~GpuPages();
    GpuPages(GpuPages&& other) noexcept;
    GpuPages& operator=(GpuPages&&) = delete;

    // Of new pages: a descriptor for another process, the caller's to close.
    int share() const;
    CudaAddress address() const { return address_; }
    std::size_t bytes() const { return bytes_; }
    // Of all pages that this process made and still has mapped.
    static std::size_t made_bytes();
    // The least number of bytes that can be made, at least so many.
    static std::size_t rounded(std::size_t bytes);

private:
    GpuPages(std::uint64_t handle, std::size_t bytes, bool made);
    void give_up();

    std::uint64_t handle_;
    std::size_t bytes_;
    bool made_;
    CudaAddress address_ = 0;
    bool mapped_ = false;
};

// A Unix socket of packets, over which one rank hands chunks to the other. Owns its descriptor.
class ChunkSocket {
public:
    // Keeps a duplicate; the descriptor stays the caller's.
    explicit ChunkSocket(int descriptor);
    ~ChunkSocket();
    ChunkSocket(const ChunkSocket&) = delete;
    ChunkSocket& operator=(const ChunkSocket&) = delete;

    struct Header {
        std::uint64_t chunk;
        std::uint64_t bytes;
    };
    // Throws std::runtime_error when the peer does not take what it was handed before.
    void hand_over(const Header& chunk, int descriptor);
    struct Received {
        Header header;
        int descriptor;  // the caller's to close
    };
    std::optional<Received> receive();

private:
    int descriptor_;
};

// A piece of a chunk, for one message.
struct Block {
    std::uint64_t chunk = 0;
    std::uint64_t offset = 0;
    std::size_t bytes = 0;
    CudaAddress address = 0;
    unsigned messages = 0;  // that are under way in it
    // The last of them is being copied out on this stream, on which the block may be promised again.
    bool landing = false;
    void* stream = nullptr;
};

// This rank's chunks for one peer.
class ReceivePool {
public:
    // What is new is kept below the limit where idle memory can make room. Messages that are under way at once may need
    // more, of which a part stays for the next ones: it takes longer to make memory than to send it.
    ReceivePool(int socket, std::size_t limit_bytes);

    // A block for `bytes`, whose message will be copied out on `stream` at the earliest. `busy`: only once what the stream
    // holds now is done, for another message is still copied out of it there. Throws std::runtime_error when there is no
    // memory.
    struct Place {
        Block* block;
        bool busy;
    };
    Place take(std::size_t bytes, void* stream);
    void landing(Block* block, void* stream);
    void give_back(Block* block);
    void set_limit(std::size_t bytes) { limit_bytes_ = bytes; }
    // Chunks that were given up since the last call: the peer must be told.
    std::vector<std::uint64_t> ended() { return std::move(ended_); }

private:
    struct Chunk {
        GpuPages pages;
        std::vector<Block> blocks;
        unsigned messages = 0;
        std::uint64_t used = 0;  // when, in takes
    };
    void trim(std::size_t needed_bytes, std::size_t limit_bytes);
    Chunk& add(std::size_t block_bytes);
    Block* find_free(std::size_t bytes);
    Block* find_landing(std::size_t bytes, void* stream);
    Block* claim(Block* block);

    ChunkSocket socket_;
    std::size_t limit_bytes_;
    std::size_t held_bytes_ = 0;
    std::uint64_t next_chunk_ = 1;
    std::uint64_t takes_ = 0;
    std::map<std::uint64_t, Chunk> chunks_;
    std::vector<std::uint64_t> ended_;
};

// The peer's chunks, mapped into this process.
class PeerChunks {
public:
    explicit PeerChunks(int socket) : socket_(socket) {}
    // Maps what was handed over.
    void take();
    // Throws std::runtime_error for a place that is in none.
    CudaAddress find(std::uint64_t chunk, std::uint64_t offset, std::size_t bytes);
    void end(std::uint64_t chunk) { chunks_.erase(chunk); }

private:
    ChunkSocket socket_;
    std::unordered_map<std::uint64_t, GpuPages> chunks_;
};

}  // namespace megatronapp::rdma
