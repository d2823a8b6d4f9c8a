// What is used of DLPack's C exchange API: how a tensor library tells C code of a tensor. Names, types and numbers:
// DLPack 1.3 (dlpack.h, github.com/dmlc/dlpack; they are part of its binary interface).
#pragma once

#include <cstdint>

namespace megatronapp::rdma {

struct DlTensor {
    void* data;
    std::int32_t device_type;
    std::int32_t device_id;
    std::int32_t dimensions;
    std::uint8_t type_code;
    std::uint8_t type_bits;
    std::uint16_t type_lanes;
    std::int64_t* shape;
    std::int64_t* strides;  // in elements
    std::uint64_t byte_offset;
};
static_assert(sizeof(DlTensor) == 48);

// Functions return 0, or -1 with Python's exception set.
struct DlExchange {
    std::uint32_t major;
    std::uint32_t minor;
    const DlExchange* previous;
    void* allocate;
    void* to_managed;
    void* from_managed;
    int (*describe)(void* object, DlTensor* found);
    int (*current_stream)(std::int32_t device_type, std::int32_t device_id, void** stream);

    static constexpr const char* kAttribute = "__dlpack_c_exchange_api__";
    static constexpr const char* kCapsule = "dlpack_exchange_api";
    static constexpr std::uint32_t kMajor = 1;

    static constexpr std::int32_t kCpu = 1;
    static constexpr std::int32_t kCuda = 2;

    static constexpr std::uint8_t kInt = 0;
    static constexpr std::uint8_t kUnsigned = 1;
    static constexpr std::uint8_t kFloat = 2;
    static constexpr std::uint8_t kBfloat = 4;
    static constexpr std::uint8_t kComplex = 5;
    static constexpr std::uint8_t kBool = 6;
    static constexpr std::uint8_t kFloat8E4m3fn = 10;
    static constexpr std::uint8_t kFloat8E5m2 = 12;
};

}  // namespace megatronapp::rdma
