// Spans and marks of one rank. Knows nothing of Python; see the protocol Recorder of the scan plug-in for the meaning.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cuda.h"

namespace megatronapp {

// Counts all marks of a recorder, from 0.
using MarkId = std::int64_t;
constexpr MarkId kNoMark = -1;

struct Mark {
    std::int64_t host_ns;
    std::int64_t cpu_ns;
    Event event;  // null: a mark of the host
};

struct Row {
    std::uint8_t name;
    std::uint8_t blocked;
    std::uint8_t stream;
    std::int16_t chunk;
    std::int16_t layer;
    std::int32_t microbatch;
    std::int32_t peer;
    std::uint32_t communicator;
    std::uint32_t first;
    std::int64_t sequence;
    std::int64_t bytes;
    std::int64_t tokens;
    std::int64_t length_squares;
    std::uint32_t issue, begin, end;  // marks of the same chunk
};

// What is recorded between two seals.
struct Chunk {
    MarkId first_mark = 0;
    std::vector<Mark> marks;
    std::vector<Row> rows;
};

constexpr std::size_t kColumns = 19;
extern const std::array<const char*, kColumns> kColumnNames;

struct Resolved {
    std::int64_t reference_ns = 0;
    std::int64_t reference_error_ns = 0;
    std::array<std::vector<std::int64_t>, kColumns> columns;
};

class Recorder {
public:
    // Tells the raw stream that is current on the calling thread.
    using CurrentStream = std::function<Stream()>;

    Recorder(std::string on_host, std::string blocking, std::unique_ptr<Cuda> cuda, CurrentStream current_stream);

    void context(std::int32_t microbatch, std::int16_t chunk) { microbatch_ = microbatch, chunk_ = chunk; }
    void begin(std::uint8_t name, MarkId at);
    MarkId end();
    MarkId end_work(std::int64_t tokens, std::int64_t length_squares);
    MarkId end_operation(
        std::uint32_t communicator, std::int32_t peer, std::int64_t sequence, std::int64_t bytes, std::uint8_t stream,
        MarkId issued);
    MarkId cancel();
    void restart();
    void switch_to(int close, std::int16_t layer, int open_first, int open_second);
    void add(std::uint8_t name, std::int64_t begin_ns, std::int64_t end_ns, std::int64_t cpu_ns);
    MarkId mark() { return append(stream_mark()); }
    bool done(MarkId mark);
    std::pair<int, std::int64_t> innermost() const;
    std::size_t depth() const { return open_.size(); }
    std::size_t names() const { return on_host_.size(); }

    std::unique_ptr<Chunk> seal();
    // For side threads, one chunk at a time and by one thread only; these take no lock of Python's.
    bool ready(const Chunk& chunk) const;
    Resolved resolve(const Chunk& chunk);
    // Back under Python's lock: the chunk's events and memory are used again.
    void recycle(std::unique_ptr<Chunk> chunk);

private:
    struct Open {
        std::uint8_t name;
        std::uint8_t blocked;
        std::uint32_t first;
        MarkId begin;
    };

    Mark host_mark() const;
    Mark stream_mark();
    Mark mark_for(std::uint8_t name) { return on_host_[name] ? host_mark() : stream_mark(); }
    MarkId append(const Mark& mark);
    // A mark's place in this chunk; one of an earlier chunk is gone, and `otherwise` stands in.
    std::uint32_t local(MarkId mark, std::uint32_t otherwise) const;
    Open pop();
    void push(std::uint8_t name, MarkId begin);
    Row& close(const Open& open, MarkId end, MarkId issued, std::int16_t layer);

    std::string on_host_, blocking_;
    std::unique_ptr<Cuda> cuda_;
    CurrentStream current_stream_;
    std::unique_ptr<Chunk> chunk_now_;
    std::vector<std::unique_ptr<Chunk>> spare_;
    // Those not yet recycled. The marks of all others are done.
    std::vector<const Chunk*> sealed_;
    std::vector<Open> open_;
    std::uint8_t blocked_ = 0;
    std::int32_t microbatch_ = -1;
    std::int16_t chunk_ = -1;
};

}  // namespace megatronapp
