// The scheduler of the emulation: every CUDA thread is a fiber, and one CPU thread runs them in a random order.
#include "accesses.h"

#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

extern "C" {
extern u8 __start_shared_variables[] __attribute__((weak));
extern u8 __stop_shared_variables[] __attribute__((weak));
}

namespace emulation {

dim3 thread_index, block_index, block_size, grid_size;

namespace {

const size_t STACK_BYTES = 64 * 1024;
const u32 SLOT_LIMIT = 64; // slots of a block
const u32 LANES = 32;
const u32 ALL_LANES = 0xffffffffu;

#if defined(__x86_64__)
struct Context { void* stack; };
extern "C" void emulation_switch(void** from, void* to);
asm(R"(
.text
.globl emulation_switch
.type emulation_switch, @function
emulation_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size emulation_switch, .-emulation_switch
)");
void switch_context(Context& from, Context& to) { emulation_switch(&from.stack, to.stack); }
void prepare_context(Context& context, u8* stack, void (*entry)()) {
    // The entry sees a stack pointer that is 8 below a multiple of 16, as after a call.
    void** top = reinterpret_cast<void**>(stack + STACK_BYTES) - 2;
    top[0] = reinterpret_cast<void*>(entry);
    top[1] = nullptr;
    for (int i = 1; i <= 6; i++) top[-i] = nullptr;
    context.stack = top - 6;
}
#else
typedef ucontext_t Context;
void switch_context(Context& from, Context& to) { swapcontext(&from, &to); }
void prepare_context(Context& context, u8* stack, void (*entry)()) {
    getcontext(&context);
    context.uc_stack.ss_sp = stack;
    context.uc_stack.ss_size = STACK_BYTES;
    context.uc_link = nullptr;
    makecontext(&context, entry, 0);
}
#endif

struct Slot {
    u64* address;
    u32 arrivals;  // that complete a phase
    u32 pending;   // arrivals that are missing in this phase
    i64 bytes;     // expected and not yet copied; negative where a copy was faster than its expect
    u64 phase;     // number of completed phases
    u32 actor;     // of the copies, in clocks
    Clock clock;   // of completed phases
    Clock arrived; // of this phase
};

struct Warp;
struct Block;

struct Fiber {
    Context context;
    Warp* warp;
    u32 lane;
    dim3 thread;
    const char* place; // the last function of `device.cuh` that it called
    int line;
    bool ended;
    Slot* slot; // that it waits for
    u64 phase;
};

struct Warp {
    Block* block;
    u32 index;
    Fiber* fibers[LANES];
    u32 ready;   // lanes that can run
    u32 polling; // lanes in a wait loop; an atomic operation makes them ready
    u32 waiting; // lanes that wait for a slot
    u32 ended;
    // The meeting of all lanes in a shuffle or barrier.
    u32 arrived;
    const char* meeting;
    u64 meeting_argument;
    int meeting_line;
    u64 values[LANES];
    u64 results[LANES];
    int barrier; // the named barrier that the warp waits at, or -1
    int barrier_threads;
};

struct Block {
    u32 index;
    std::vector<Warp> warps;
    u8* shared;
    Region* region; // of `shared`
    std::vector<Slot> slots;
    u32 barrier_arrived[16];
    int barrier_threads[16];
    Clock barrier_clocks[16];
    std::vector<u8> variables; // contents of the section of `__shared__` variables while another block runs
};

struct Copy {
    u8* to;
    const u8* from;
    u32 bytes;
    u64* slot;
    Block* block;
    int line;
};

const u64 SLOT_MARK = 0x51075107aa000000ull;

std::vector<Region*> shared_regions; // of each block
std::map<const u32*, Clock> counter_clocks;
std::vector<u8*> stacks;
std::vector<Fiber> fibers;
std::vector<Block> blocks;
std::vector<Copy> copies;
Launch settings;
Random generator(1);
Context scheduler;
Fiber* current;
Block* loaded; // whose `__shared__` variables are in the section
void (*kernel)(const void*);
const void* kernel_argument;
u64 progress; // counts everything but unsuccessful polls
u32 left;
// How this launch orders things, drawn from its seed.
u32 style_block, style_burst, style_copy, style_lane;
std::vector<u32> block_order;

size_t variable_bytes() { return __start_shared_variables ? (size_t)(__stop_shared_variables - __start_shared_variables) : 0; }

u32 thread_number(const Fiber* fiber) { return (u32)(fiber - fibers.data()); }

void describe_blocks() {
    for (Block& block : blocks) {
        fprintf(stderr, "  block %u:", block.index);
        // Groups of threads at the same place.
        std::map<std::string, std::vector<u32>> places;
        for (Warp& warp : block.warps)
            for (Fiber* fiber : warp.fibers) {
                char text[200];
                if (fiber->ended)
                    snprintf(text, sizeof text, "ended");
                else if (fiber->slot)
                    snprintf(text, sizeof text, "%s at line %d for slot %d (phase %llu, pending arrivals %u, missing bytes %lld)", fiber->place,
                             fiber->line, (int)(fiber->slot - block.slots.data()), fiber->slot->phase, fiber->slot->pending, fiber->slot->bytes);
                else if (warp.barrier >= 0)
                    snprintf(text, sizeof text, "%s %d at line %d (%u of %d threads)", fiber->place, warp.barrier, fiber->line,
                             block.barrier_arrived[warp.barrier], warp.barrier_threads);
                else
                    snprintf(text, sizeof text, "%s at line %d", fiber->place ? fiber->place : "start", fiber->line);
                places[text].push_back(fiber->thread.x);
            }
        for (auto& [text, threads] : places) {
            fprintf(stderr, "\n    %zu threads (%u", threads.size(), threads[0]);
            for (size_t i = 1; i < threads.size() && i < 4; i++) fprintf(stderr, " %u", threads[i]);
            fprintf(stderr, "%s): %s", threads.size() > 4 ? " ..." : "", text.c_str());
        }
        fprintf(stderr, "\n");
    }
}

void at(const char* place, int line) {
    judge_write();
    if (!current) return;
    current->place = place;
    current->line = line;
}

void leave() { switch_context(current->context, scheduler); }

Slot* slot_at(u64* address, const char* operation) {
    Block* block = current ? current->warp->block : nullptr;
    u64 mark = *address;
    u32 index = (u32)(mark & 0xffff);
    if ((mark & ~0xffffull) != SLOT_MARK || index >= block->slots.size() || block->slots[index].address != address)
        fault("%s: there is no initialised slot at this address (it holds %016llx)", operation, mark);
    if (checks) check_read(block->region, address, 8, thread_number(current), (u32)-current->line, true);
    return &block->slots[index];
}

void complete_phase_if_due(Block* block, Slot* slot) {
    if (slot->pending != 0 || slot->bytes != 0) return;
    if (checks) {
        slot->clock.resize(actors, 0);
        join(slot->clock, slot->arrived);
        slot->clock[slot->actor] = first_clock + (u32)slot->phase;
    }
    slot->phase++;
    slot->pending = slot->arrivals;
    for (Warp& warp : block->warps) {
        if (!warp.waiting) continue;
        for (u32 lane = 0; lane < LANES; lane++)
            if ((warp.waiting >> lane & 1) && warp.fibers[lane]->slot == slot) {
                warp.waiting &= ~(1u << lane);
                warp.ready |= 1u << lane;
            }
    }
}

void complete_copy(size_t index) {
    Copy copy = copies[index];
    copies[index] = copies.back();
    copies.pop_back();
    memcpy(copy.to, copy.from, copy.bytes);
    u32 slot_index = (u32)(*copy.slot & 0xffff);
    Slot* slot = &copy.block->slots[slot_index];
    slot->bytes -= copy.bytes;
    progress++;
    complete_phase_if_due(copy.block, slot);
}

void wake_pollers() {
    for (Block& block : blocks)
        for (Warp& warp : block.warps) {
            warp.ready |= warp.polling;
            warp.polling = 0;
        }
}

// All lanes of a warp meet. Returns true in the lane that arrived last, which must call `end_meeting`.
bool meet(const char* name, u64 argument, int line, u64 value) {
    progress++;
    at(name, line);
    Warp* warp = current->warp;
    if (warp->ended) fault("%s of a warp whose lanes %08x have ended", name, warp->ended);
    if (warp->arrived == 0) {
        warp->meeting = name;
        warp->meeting_argument = argument;
        warp->meeting_line = line;
    } else if (warp->meeting != name || warp->meeting_argument != argument) {
        fault("lanes of a warp diverge: %s (argument %llu) here, %s (argument %llu) at line %d in lanes %08x", name, argument, warp->meeting,
              warp->meeting_argument, warp->meeting_line, warp->arrived);
    }
    warp->arrived |= 1u << current->lane;
    warp->values[current->lane] = value;
    if (warp->arrived != ALL_LANES) {
        warp->ready &= ~(1u << current->lane);
        leave();
        return false;
    }
    return true;
}

void end_meeting() {
    Warp* warp = current->warp;
    warp->arrived = 0;
    warp->ready = ALL_LANES;
    meet_clocks(thread_number(warp->fibers[0]) / LANES);
}

u64 shuffle(const char* name, u64 value, int mask, int line) {
    Warp* warp = current->warp;
    u32 lane = current->lane;
    if (mask <= 0 || mask >= (int)LANES) fault("%s with mask %d", name, mask);
    if (meet(name, (u64)mask, line, value)) {
        for (u32 i = 0; i < LANES; i++) warp->results[i] = warp->values[i ^ (u32)mask];
        end_meeting();
    }
    return warp->results[lane];
}

void fiber_main() {
    kernel(kernel_argument);
    judge_write();
    Warp* warp = current->warp;
    u32 bit = 1u << current->lane;
    if (warp->arrived) fault("a lane ended while lanes %08x wait in %s at line %d", warp->arrived, warp->meeting, warp->meeting_line);
    current->ended = true;
    warp->ended |= bit;
    warp->ready &= ~bit;
    progress++;
    left--;
    leave();
    abort();
}

void load_variables(Block* block) {
    size_t bytes = variable_bytes();
    if (!bytes || loaded == block) return;
    if (loaded) memcpy(loaded->variables.data(), __start_shared_variables, bytes);
    memcpy(__start_shared_variables, block->variables.data(), bytes);
    loaded = block;
}

void run_fiber(Fiber* fiber) {
    current = fiber;
    thread_index = fiber->thread;
    block_index = {fiber->warp->block->index, 0, 0};
    load_variables(fiber->warp->block);
    switch_context(scheduler, fiber->context);
    current = nullptr;
}

Warp* choose_warp() {
    size_t count = blocks.size(), warps = blocks[0].warps.size();
    if (style_block == 0) {
        size_t total = count * warps, first = generator.below((u32)total);
        for (size_t i = 0; i < total; i++) {
            size_t at = (first + i) % total;
            Warp& warp = blocks[at / warps].warps[at % warps];
            if (warp.ready) return &warp;
        }
        return nullptr;
    }
    // One block runs as far as it can before another does; the order of blocks changes at times.
    if (style_block == 2 && generator.below(2000) == 0) std::swap(block_order[generator.below((u32)count)], block_order[generator.below((u32)count)]);
    for (u32 index : block_order) {
        size_t first = generator.below((u32)warps);
        for (size_t i = 0; i < warps; i++) {
            Warp& warp = blocks[index].warps[(first + i) % warps];
            if (warp.ready) return &warp;
        }
    }
    return nullptr;
}

u8* guarded(size_t bytes) {
    size_t pages = (bytes + PAGE - 1) / PAGE * PAGE;
    void* memory = mmap(nullptr, pages + 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) fault("no memory for %zu bytes", bytes);
    u8* start = static_cast<u8*>(memory);
    mprotect(start, PAGE, PROT_NONE);
    mprotect(start + PAGE + pages, PAGE, PROT_NONE);
    return start + PAGE;
}

u64 copy_chance; // of 2^32, at each run of a fiber
u8 signal_stack[64 * 1024];

void on_signal(int, siginfo_t* information, void*) {
    const u8* address = static_cast<const u8*>(information->si_addr);
    for (const Region* region : regions)
        if (address + 2 * PAGE >= region->start && address < region->start + region->bytes + PAGE)
            fault("access out of bounds: byte %lld of \"%s\", which has %zu bytes", (long long)(address - region->start), region->name.c_str(), region->bytes);
    fault("access to address %p, which is no memory of the kernel", information->si_addr);
}

}

void fault(const char* format, ...) {
    fflush(stdout);
    fprintf(stderr, "fault (seed %llu): ", settings.seed);
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fprintf(stderr, "\n");
    if (current)
        fprintf(stderr, "  in block %u, thread %u, at or after %s at line %d\n", current->warp->block->index, current->thread.x,
                current->place ? current->place : "the start", current->line);
    if (!blocks.empty() && left) describe_blocks();
    fflush(stderr);
    _exit(1);
}

void* allocate(const char* name, size_t bytes) { return new_region(name, bytes, 16, -1)->start; }

void poison(void* memory, size_t bytes) {
    memset(memory, 0xff, bytes);
    Region* region = region_of(memory);
    if (!region || region->cells.empty()) return;
    size_t first = (size_t)((u8*)memory - region->start);
    for (size_t index = first / CELL; index * CELL < first + bytes; index++) region->cells[index].write = {NOTHING, 0, 0};
}

void shared_between_blocks(void* memory, bool allows_same_bits) {
    if (!checks) return;
    Region* region = region_of(memory);
    region->cells.resize((region->bytes + CELL - 1) / CELL);
    region->allows_same_bits = allows_same_bits;
}

void launch(const Launch& launch_settings, void (*body)(const void*), const void* argument) {
    static bool first = true;
    if (first) {
        first = false;
        stack_t stack = {};
        stack.ss_sp = signal_stack;
        stack.ss_size = sizeof signal_stack;
        sigaltstack(&stack, nullptr);
        struct sigaction action = {};
        action.sa_sigaction = on_signal;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK;
        sigaction(SIGSEGV, &action, nullptr);
        sigaction(SIGBUS, &action, nullptr);
    }
    settings = launch_settings;
    generator = Random(settings.seed);
    kernel = body;
    kernel_argument = argument;
    if (settings.threads % LANES || settings.threads > 1024) fault("%u threads in a block", settings.threads);
    if (settings.shared_bytes > 232448) fault("%zu bytes of shared memory in a block; a GPU of compute capability 9.0 has 232448", settings.shared_bytes);
    u32 warps = settings.threads / LANES, total = settings.blocks * settings.threads;
    block_size = {settings.threads, 1, 1};
    grid_size = {settings.blocks, 1, 1};
    while (stacks.size() < total) stacks.push_back(guarded(STACK_BYTES));
    fibers.assign(total, Fiber());
    if (blocks.size() != settings.blocks) blocks.assign(settings.blocks, Block());
    loaded = nullptr;
    copies.clear();
    counter_clocks.clear();
    start_clocks(total, settings.threads, settings.blocks * SLOT_LIMIT);
    for (u32 b = 0; b < settings.blocks; b++) {
        Block& block = blocks[b];
        block.index = b;
        if (shared_regions.size() <= b) shared_regions.resize(b + 1);
        if (!shared_regions[b] || shared_regions[b]->bytes != settings.shared_bytes)
            shared_regions[b] = new_region(("shared memory of block " + std::to_string(b)).c_str(), settings.shared_bytes, 128, (int)b);
        block.region = shared_regions[b];
        block.shared = block.region->start;
        memset(block.shared, 0xff, settings.shared_bytes);
        if (checks) block.region->cells.assign((settings.shared_bytes + CELL - 1) / CELL, Cell{{NOTHING, 0, 0}, {HOST, 0, 0}, nullptr, nullptr});
        block.slots.clear();
        block.slots.reserve(SLOT_LIMIT);
        block.variables.assign(variable_bytes(), 0xff);
        for (int i = 0; i < 16; i++) {
            block.barrier_arrived[i] = 0;
            block.barrier_clocks[i].clear();
        }
        block.warps.assign(warps, Warp());
        for (u32 w = 0; w < warps; w++) {
            Warp& warp = block.warps[w];
            warp.block = &block;
            warp.index = w;
            warp.ready = ALL_LANES;
            warp.barrier = -1;
            for (u32 lane = 0; lane < LANES; lane++) {
                u32 index = (b * warps + w) * LANES + lane;
                Fiber& fiber = fibers[index];
                fiber.warp = &warp;
                fiber.lane = lane;
                fiber.thread = {w * LANES + lane, 0, 0};
                prepare_context(fiber.context, stacks[index], fiber_main);
                warp.fibers[lane] = &fiber;
            }
        }
    }
    style_block = generator.below(3);
    style_burst = generator.below(3);
    style_lane = generator.below(2);
    style_copy = generator.below(3);
    // Copies complete soon, seldom, or only when nothing else can run.
    copy_chance = style_copy == 0 ? 0x20000000u : style_copy == 1 ? 0x00400000u : 0;
    block_order.resize(settings.blocks);
    for (u32 b = 0; b < settings.blocks; b++) block_order[b] = b;
    for (u32 b = settings.blocks; b > 1; b--) std::swap(block_order[b - 1], block_order[generator.below(b)]);

    left = total;
    progress = 0;
    u64 progress_at_wake = ~0ull;
    u32 wakes = 0;
    while (left) {
        if (!copies.empty() && (generator.next() >> 32) < copy_chance) complete_copy(generator.below((u32)copies.size()));
        Warp* warp = choose_warp();
        if (!warp) {
            if (!copies.empty()) {
                complete_copy(generator.below((u32)copies.size()));
                continue;
            }
            wakes = progress == progress_at_wake ? wakes + 1 : 0;
            progress_at_wake = progress;
            if (wakes >= 3) fault("deadlock: no thread can continue");
            wake_pollers();
            if (!choose_warp()) fault("deadlock: every thread waits");
            continue;
        }
        u32 burst = style_burst == 0 ? 1 : style_burst == 1 ? 1 + generator.below(64) : 1000;
        while (warp->ready && burst--) {
            u32 turn = style_lane == 0 ? generator.below(LANES) : 0;
            u32 rotated = turn ? warp->ready >> turn | warp->ready << (LANES - turn) : warp->ready;
            u32 lane = ((u32)__builtin_ctz(rotated) + turn) % LANES;
            run_fiber(warp->fibers[lane]);
        }
    }
    if (!copies.empty()) fault("%zu copies were in flight when the kernel ended", copies.size());
    loaded = nullptr;
}

}

using namespace emulation;

u8* shared_memory() { return current->warp->block->shared; }

float shuffle_xor(float value, int mask, int line) { return __uint_as_float((u32)shuffle("shuffle_xor", float_bits(value), mask, line)); }
u64 shuffle_xor_u64(u64 value, int mask, int line) { return shuffle("shuffle_xor_u64", value, mask, line); }

void warp_sync(int line) {
    if (meet("warp_sync", 0, line, 0)) end_meeting();
}

void block_sync(int barrier, int threads, int line) {
    Warp* warp = current->warp;
    Block* block = warp->block;
    if (barrier < 0 || barrier > 15) fault("block_sync: there is no barrier %d", barrier);
    if (threads <= 0 || threads % (int)LANES || threads > (int)settings.threads) fault("block_sync: %d threads", threads);
    if (!meet("block_sync", (u64)barrier << 32 | (u32)threads, line, 0)) return;
    warp->arrived = 0;
    u32 warp_number = thread_number(current) / LANES;
    meet_clocks(warp_number);
    if (checks) {
        block->barrier_clocks[barrier].resize(actors, 0);
        join(block->barrier_clocks[barrier], bases[warp_number]);
    }
    if (block->barrier_arrived[barrier] == 0)
        block->barrier_threads[barrier] = threads;
    else if (block->barrier_threads[barrier] != threads)
        fault("block_sync: barrier %d for %d threads, but others wait there for %d", barrier, threads, block->barrier_threads[barrier]);
    block->barrier_arrived[barrier] += LANES;
    warp->barrier = barrier;
    warp->barrier_threads = threads;
    warp->ready = 0;
    if ((int)block->barrier_arrived[barrier] < threads) {
        leave();
        return;
    }
    block->barrier_arrived[barrier] = 0;
    for (Warp& other : block->warps)
        if (other.barrier == barrier) {
            other.barrier = -1;
            other.ready = ALL_LANES;
            if (checks) join(bases[thread_number(other.fibers[0]) / LANES], block->barrier_clocks[barrier]);
        }
    block->barrier_clocks[barrier].clear();
}

void slot_init(u64* slot, u32 arrivals, int line) {
    at("slot_init", line);
    progress++;
    Block* block = current->warp->block;
    u8* start = reinterpret_cast<u8*>(slot);
    if (start < block->shared || start + 8 > block->shared + settings.shared_bytes || (uintptr_t)slot % 8) fault("slot_init: not in shared memory, or not aligned");
    for (Slot& other : block->slots)
        if (other.address == slot) fault("slot_init: this slot was initialised before");
    if (arrivals == 0) fault("slot_init: zero arrivals");
    if (block->slots.size() == SLOT_LIMIT) fault("slot_init: too many slots");
    *slot = SLOT_MARK | block->slots.size();
    u32 actor = (u32)fibers.size() + block->index * SLOT_LIMIT + (u32)block->slots.size();
    block->slots.push_back({slot, arrivals, arrivals, 0, 0, actor, {}, {}});
    if (checks) check_write(block->region, slot, 8, thread_number(current), {thread_number(current), threads[thread_number(current)].clock, (u32)-line});
}

void fence_init(int line) { at("fence_init", line); }

static void arrive(Slot* slot, const char* operation) {
    if (slot->pending == 0) fault("%s: more arrivals than the %u of the slot in one phase", operation, slot->arrivals);
    slot->pending--;
    release(thread_number(current), slot->arrived);
    complete_phase_if_due(current->warp->block, slot);
}

void slot_expect(u64* address, u32 bytes, int line) {
    at("slot_expect", line);
    progress++;
    Slot* slot = slot_at(address, "slot_expect");
    slot->bytes += bytes;
    arrive(slot, "slot_expect");
}

void slot_arrive(u64* address, int line) {
    at("slot_arrive", line);
    progress++;
    arrive(slot_at(address, "slot_arrive"), "slot_arrive");
}

void slot_wait(u64* address, u32 parity, int line) {
    at("slot_wait", line);
    progress++;
    Slot* slot = slot_at(address, "slot_wait");
    if (parity > 1) fault("slot_wait: parity %u", parity);
    if ((slot->phase & 1) != parity) {
        acquire(thread_number(current), slot->clock);
        return;
    }
    u64 phase = slot->phase;
    Warp* warp = current->warp;
    u32 bit = 1u << current->lane;
    current->slot = slot;
    current->phase = phase;
    warp->waiting |= bit;
    warp->ready &= ~bit;
    leave();
    current->slot = nullptr;
    acquire(thread_number(current), slot->clock);
    if (slot->phase != phase + 1)
        fault("slot_wait: the slot completed %llu phases while this thread waited for one, so that a GPU could miss it", slot->phase - phase);
}

void copy_to_shared(void* shared, const void* global, u32 bytes, u64* address, int line) {
    at("copy_to_shared", line);
    progress++;
    Block* block = current->warp->block;
    Slot* slot = slot_at(address, "copy_to_shared");
    u8* to = static_cast<u8*>(shared);
    const u8* from = static_cast<const u8*>(global);
    if (bytes == 0 || bytes % 16 || (uintptr_t)to % 16 || (uintptr_t)from % 16)
        fault("copy_to_shared: %u bytes from address %p to %p; all must be multiples of 16, and not zero", bytes, global, shared);
    if (to < block->shared || to + bytes > block->shared + settings.shared_bytes)
        fault("copy_to_shared: bytes %lld to %lld of the shared memory, which has %zu", (long long)(to - block->shared), (long long)(to - block->shared) + bytes,
              settings.shared_bytes);
    const Region* region = region_of(from);
    if (!region || from + bytes > region->start + region->bytes)
        fault("copy_to_shared: reads %u bytes from byte %lld of \"%s\", which has %zu", bytes, region ? (long long)(from - region->start) : 0LL,
              region ? region->name.c_str() : "unknown memory", region ? region->bytes : (size_t)0);
    for (const Copy& other : copies)
        if (other.block == block && to < other.to + other.bytes && other.to < to + bytes)
            fault("copy_to_shared: overwrites the target of a copy that is in flight (from line %d)", other.line);
    if (checks) check_write(block->region, to, bytes, thread_number(current), {slot->actor, first_clock + (u32)slot->phase, (u32)-line});
    memset(to, 0xff, bytes);
    copies.push_back({to, from, bytes, address, block, line});
}

void backoff(u32& turns, u64&, int line) {
    at("backoff", line);
    turns++;
    Warp* warp = current->warp;
    u32 bit = 1u << current->lane;
    warp->ready &= ~bit;
    warp->polling |= bit;
    leave();
}

u64 nanoseconds() { return progress; }

static Region* global(const void* address, size_t bytes, const char* operation, int line) {
    at(operation, line);
    Region* region = region_of(address);
    if (!region || region->block >= 0) fault("%s: address %p is no global memory", operation, address);
    size_t byte = (size_t)((const u8*)address - region->start);
    if ((uintptr_t)address % bytes) fault("%s: byte %zu of \"%s\" is not aligned", operation, byte, region->name.c_str());
    if (byte + bytes > region->bytes) fault("%s: byte %zu of \"%s\", which has %zu bytes", operation, byte, region->name.c_str(), region->bytes);
    return region;
}

template <typename T> static T load(const void* address, const char* operation, int line) {
    Region* region = global(address, sizeof(T), operation, line);
    if (checks) check_read(region, address, sizeof(T), thread_number(current), (u32)-line, true);
    return *static_cast<const T*>(address);
}

static void store(u32* address, u32 value, const char* operation, int line) {
    Region* region = global(address, 4, operation, line);
    u32 thread = thread_number(current);
    if (checks) check_write(region, address, 4, thread, {thread, threads[thread].clock, (u32)-line});
    *address = value;
}

u32 load_acquire(const u32* address, int line) {
    global(address, 4, "load_acquire", line);
    acquire(thread_number(current), counter_clocks[address]);
    return *address;
}

u32 add_acquire_release(u32* address, u32 value, int line) {
    global(address, 4, "add_acquire_release", line);
    progress++;
    acquire(thread_number(current), counter_clocks[address]);
    release(thread_number(current), counter_clocks[address]);
    *address += value;
    wake_pollers();
    return *address - value;
}

void add_release(u32* address, u32 value, int line) {
    global(address, 4, "add_release", line);
    progress++;
    release(thread_number(current), counter_clocks[address]);
    *address += value;
    wake_pollers();
}

float load_fresh(const float* address, int line) { return load<float>(address, "load_fresh", line); }
float4 load_fresh4(const float* address, int line) { return load<float4>(address, "load_fresh4", line); }
uint4 load_fresh_u16x8(const u16* address, int line) { return load<uint4>(address, "load_fresh_u16x8", line); }
u64 load_fresh_u64(const u64* address, int line) { return load<u64>(address, "load_fresh_u64", line); }

void publish(u32* data, u32 value, u32* number, u32 step, int line) {
    if (*number == step) fault("publish: step %u is published already", step);
    store(data, value, "publish", line);
    store(number, step, "publish", line);
}

float half_to_float(u16 half) {
    _Float16 value;
    memcpy(&value, &half, 2);
    return (float)value;
}

u16 float_to_half(float value) {
    _Float16 half = (_Float16)value;
    u16 bits;
    memcpy(&bits, &half, 2);
    return bits;
}

// The functions that g++ calls for each access of a kernel that is compiled with `-fsanitize=thread`.
static void read_hook(const void* address, size_t bytes, void* code) {
    if (!current) return;
    judge_write();
    if (Region* region = region_of(address)) {
        if (region->block >= 0 && region != current->warp->block->region) fault("access to the shared memory of another block");
        check_read(region, address, bytes, thread_number(current), (u32)(uintptr_t)code, false);
    }
}

static void write_hook(void* address, size_t bytes, void* code) {
    if (!current) return;
    judge_write();
    if (Region* region = region_of(address)) {
        if (region->block >= 0 && region != current->warp->block->region) fault("access to the shared memory of another block");
        start_write(region, address, bytes, thread_number(current), (u32)(uintptr_t)code);
    }
}

#define HOOKS(bytes) \
    extern "C" void __tsan_read##bytes(void* address) { read_hook(address, bytes, __builtin_return_address(0)); } \
    extern "C" void __tsan_write##bytes(void* address) { write_hook(address, bytes, __builtin_return_address(0)); } \
    extern "C" void __tsan_unaligned_read##bytes(void* address) { read_hook(address, bytes, __builtin_return_address(0)); } \
    extern "C" void __tsan_unaligned_write##bytes(void* address) { write_hook(address, bytes, __builtin_return_address(0)); } \
    extern "C" void __tsan_volatile_read##bytes(void* address) { read_hook(address, bytes, __builtin_return_address(0)); } \
    extern "C" void __tsan_volatile_write##bytes(void* address) { write_hook(address, bytes, __builtin_return_address(0)); }
HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)
extern "C" void __tsan_init() { checks = true; }
extern "C" void __tsan_func_entry(void*) {}
extern "C" void __tsan_func_exit() {}
extern "C" void __tsan_vptr_update(void*, void*) {}
extern "C" void __tsan_vptr_read(void*) {}
extern "C" void __tsan_read_range(void* address, size_t bytes) { read_hook(address, bytes, __builtin_return_address(0)); }
extern "C" void __tsan_write_range(void* address, size_t bytes) {
    if (bytes <= 16) write_hook(address, bytes, __builtin_return_address(0));
}
