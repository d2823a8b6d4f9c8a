// The shared memory of one rank and its agent, byte for byte: docs/agent.md.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "common/sequence_lock.h"

namespace megatronapp::common {

template <typename Value>
using Field = std::atomic<Value>;

constexpr char kMagic[8] = {'M', 'G', 'T', 'A', 'P', 'P', '0', '1'};
constexpr std::uint32_t kLayout = 1;

struct alignas(64) Header {
    char magic[8];
    std::uint32_t layout, pid, thread, reserved;
    std::uint64_t state, control, frontiers;  // offsets
    std::uint32_t frontier_entries, frontier_entry_bytes;
    std::uint64_t ring, ring_bytes, bulk, bulk_bytes;
    std::uint64_t table, table_bytes;
};

struct alignas(64) State {
    Sequence sequence;
    Field<std::int64_t> step;
    Field<std::uint32_t> phase, closing;
    Field<std::uint64_t> lost;
    Field<std::uint64_t> allocated_bytes, reserved_bytes, peak_bytes, total_bytes;
    // Outside of the lock.
    Field<std::uint64_t> activity, marks, step_marks;
    Field<std::int64_t> unpassed_mark_ns;
};

struct alignas(64) Control {
    Sequence sequence;
    Field<std::uint32_t> enabled, interval, continuous, granularity;
    Field<std::uint64_t> serial;
};

struct alignas(64) FrontiersHeader {
    Field<std::uint32_t> entries;
};

constexpr std::size_t kOpenMessages = 16;

struct OpenMessage {
    Field<std::uint64_t> step, message;
    Field<std::int64_t> posted_at_ns;
};

struct alignas(64) FrontierEntry {
    Sequence sequence;
    Field<std::uint32_t> communicator;
    Field<std::int32_t> peer;
    Field<std::uint32_t> sending;
    Field<std::int32_t> operation;
    Field<std::uint64_t> enqueued, started, completed;
    Field<std::int64_t> enqueued_at_ns, completed_at_ns;
    Field<std::uint32_t> open;
    OpenMessage messages[kOpenMessages];
};

struct alignas(64) RingHeader {
    Field<std::uint64_t> head, tail;
};

enum class RecordKind : std::uint16_t {
    kFilling = 0, kRows = 1, kStepEnd = 2, kFrame = 3, kEnqueued = 4, kCompleted = 5
};

struct RecordHeader {
    std::uint32_t bytes;
    std::uint16_t kind, reserved;
    std::uint64_t number;
};
// A filling record has no number.
constexpr std::size_t kFillingBytes = 8;

struct RowsHeader {
    std::uint64_t step;
    std::uint32_t rows, columns;
};

struct StepEnd {
    std::uint64_t step;
    std::int64_t start_ns, duration_ns, cpu_ns, reference_ns, reference_error_ns;
    std::uint32_t rows, traced, phases, known;
    double loss, learning_rate, grad_norm, tokens_per_second, teraflops;
    std::uint64_t total_steps, marks, reserved;
};

// Then the descriptor, filled up to a multiple of 8 bytes, and the payload, likewise.
struct FrameHeader {
    std::uint32_t descriptor_bytes, reserved;
    std::uint64_t payload_bytes;
};

static_assert(Field<std::uint64_t>::is_always_lock_free && Field<std::uint32_t>::is_always_lock_free);
static_assert(sizeof(Header) == 128 && offsetof(Header, ring) == 56 && offsetof(Header, bulk_bytes) == 80);
static_assert(offsetof(Header, table) == 88 && offsetof(Header, table_bytes) == 96);
static_assert(sizeof(State) == 128 && offsetof(State, lost) == 24 && offsetof(State, activity) == 64);
static_assert(offsetof(State, marks) == 72 && offsetof(State, step_marks) == 80);
static_assert(offsetof(State, unpassed_mark_ns) == 88);
static_assert(sizeof(Control) == 64 && offsetof(Control, serial) == 24);
static_assert(sizeof(FrontiersHeader) == 64);
static_assert(sizeof(FrontierEntry) == 512 && offsetof(FrontierEntry, open) == 64);
static_assert(offsetof(FrontierEntry, messages) == 72 && sizeof(OpenMessage) == 24);
static_assert(sizeof(RingHeader) == 64 && sizeof(RecordHeader) == 16 && sizeof(RowsHeader) == 16);
static_assert(sizeof(FrameHeader) == 16 && offsetof(FrameHeader, payload_bytes) == 8);
static_assert(sizeof(StepEnd) == 128 && offsetof(StepEnd, rows) == 48 && offsetof(StepEnd, marks) == 112);

}  // namespace megatronapp::common
