// Checks of every access to memory, where the kernel is compiled with `-fsanitize=thread`: g++ then calls the functions at the end
// of this file, which take the place of its library. The checks find
//
// - two accesses of different threads to the same memory, one of them a write, with nothing that orders them (vector clocks);
// - reads of memory that nothing has written;
// - plain loads of memory that another block wrote in the same launch, which the L1 cache may answer with an old value.
//
// Included by `emulation.cpp` only.
#pragma once
#include "scheduler.h"

#include <map>
#include <string>
#include <sys/mman.h>
#include <unistd.h>
#include <utility>
#include <vector>

namespace emulation {
namespace {

typedef std::vector<u32> Clock;

// All memory of the emulated GPU is in one range of addresses, so that the region of an address is found by its page.
const size_t PAGE = 4096;
const size_t ARENA_PAGES = 1 << 20;
const u32 HOST = 0xffffffffu, NOTHING = 0xfffffffeu;
const size_t CELL = 2; // bytes

struct Event {
    u32 actor; // a thread, or a slot's copies; HOST, or NOTHING
    u32 clock;
    u32 code; // address of the instruction, or the negative line of a function of `device.cuh`
};

struct Cell {
    Event write = {HOST, 0, 0};
    Event read = {HOST, 0, 0};
    std::vector<Event>* reads = nullptr;  // that are not ordered among each other
    std::vector<Event>* writes = nullptr; // of the same bits as `write`
};

struct Region {
    std::string name;
    u8* start;
    size_t bytes;
    int block; // -1: global memory
    bool allows_same_bits;
    std::vector<Cell> cells; // empty: no checks but those of the bounds
};

u8* arena;
size_t arena_used; // pages
u32* arena_regions; // of each page: index + 1
std::vector<Region*> regions;

// Clocks of threads. The lanes of a warp share `base`; a lane that has synchronised alone since their last meeting has `own`.
struct Thread {
    u32 clock;
    Clock own;
};
u32 actors, first_clock;
std::vector<Thread> threads;
std::vector<Clock> bases;
bool checks;
u32 threads_per_block;

void join(Clock& clock, const Clock& other) {
    for (size_t i = 0; i < other.size(); i++)
        if (clock[i] < other[i]) clock[i] = other[i];
}

void start_clocks(u32 count, u32 block_threads, u32 slots) {
    if (!checks) return;
    u32 largest = first_clock;
    for (Thread& thread : threads)
        if (thread.clock > largest) largest = thread.clock;
    first_clock = largest + 1;
    actors = count + slots;
    threads_per_block = block_threads;
    threads.assign(count, Thread());
    for (Thread& thread : threads) thread.clock = first_clock;
    bases.assign(count / 32, Clock(actors, 0));
}

const Clock& clock_of(u32 thread) { return threads[thread].own.empty() ? bases[thread / 32] : threads[thread].own; }

// The thread's accesses up to now come before what acquires `clock` later.
void release(u32 thread, Clock& clock) {
    if (!checks) return;
    clock.resize(actors, 0);
    join(clock, clock_of(thread));
    clock[thread] = threads[thread].clock++;
}

void acquire(u32 thread, const Clock& clock) {
    if (!checks || clock.empty()) return;
    if (threads[thread].own.empty()) threads[thread].own = bases[thread / 32];
    join(threads[thread].own, clock);
}

// All lanes of the warp met.
void meet_clocks(u32 warp) {
    if (!checks) return;
    Clock& base = bases[warp];
    for (u32 thread = warp * 32; thread < warp * 32 + 32; thread++) {
        if (!threads[thread].own.empty()) join(base, threads[thread].own);
        threads[thread].own.clear();
    }
    for (u32 thread = warp * 32; thread < warp * 32 + 32; thread++) base[thread] = threads[thread].clock++;
}

bool is_before(const Event& event, u32 thread) {
    if (event.actor == HOST || event.actor == thread || event.clock < first_clock || event.actor == NOTHING) return true;
    return clock_of(thread)[event.actor] >= event.clock;
}

Region* region_of(const void* address) {
    size_t page = (size_t)((const u8*)address - arena) / PAGE;
    if ((const u8*)address < arena || page >= arena_used) return nullptr;
    u32 index = arena_regions[page];
    return index ? regions[index - 1] : nullptr;
}

Region* new_region(const char* name, size_t bytes, size_t alignment, int block) {
    if (!arena) {
        arena = static_cast<u8*>(mmap(nullptr, ARENA_PAGES * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
        arena_regions = static_cast<u32*>(mmap(nullptr, ARENA_PAGES * 4, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
        if (arena == MAP_FAILED || arena_regions == MAP_FAILED) fault("no memory");
        arena_used = 1;
    }
    size_t rounded = (bytes + alignment - 1) / alignment * alignment, pages = (rounded + PAGE - 1) / PAGE;
    if (arena_used + pages + 1 > ARENA_PAGES) fault("no memory for %zu bytes", bytes);
    u8* memory = arena + arena_used * PAGE;
    mprotect(memory, pages * PAGE, PROT_READ | PROT_WRITE);
    memset(memory, 0xff, pages * PAGE);
    Region* region = new Region{name, memory + pages * PAGE - rounded, bytes, block, false, {}};
    regions.push_back(region);
    for (size_t i = 0; i < pages; i++) arena_regions[arena_used + i] = (u32)regions.size();
    arena_used += pages + 1; // a page without access
    return region;
}

std::string place_of(u32 code) {
    if ((i32)code < 0) return "line " + std::to_string(-(i32)code);
    char command[100], line[300] = "";
    snprintf(command, sizeof command, "addr2line -e /proc/%d/exe %x 2>/dev/null", (int)getpid(), code - 1);
    if (FILE* pipe = popen(command, "r")) {
        if (!fgets(line, sizeof line, pipe)) line[0] = 0;
        pclose(pipe);
    }
    std::string text = line;
    while (!text.empty() && text.back() == '\n') text.pop_back();
    size_t slash = text.rfind('/');
    return slash == std::string::npos ? text : text.substr(slash + 1);
}

std::string describe(const Event& event) {
    if (event.actor == HOST) return "the host";
    if (event.actor == NOTHING) return "nothing";
    if (event.actor >= threads.size()) return "a copy from " + place_of(event.code);
    return "block " + std::to_string(event.actor / threads_per_block) + ", thread " + std::to_string(event.actor % threads_per_block) + " at " + place_of(event.code);
}

[[noreturn]] void report(const char* what, const Region* region, size_t byte, const Event& now, const Event& before) {
    fault("%s: byte %zu of \"%s\": %s, and before it %s", what, byte, region->name.c_str(), describe(now).c_str(), describe(before).c_str());
}

void check_read(Region* region, const void* address, size_t bytes, u32 thread, u32 code, bool is_fresh) {
    if (region->cells.empty()) return;
    Event now = {thread, threads[thread].clock, code};
    size_t first = (size_t)((const u8*)address - region->start);
    for (size_t index = first / CELL; index * CELL < first + bytes; index++) {
        Cell& cell = region->cells[index];
        const Event* writer = &cell.write;
        if (writer->actor == NOTHING) {
            // Shared memory is read beyond the rows of a slot on purpose; only its values count.
            if (region->block >= 0) continue;
            report("read of memory that nothing has written", region, index * CELL, now, *writer);
        }
        if (cell.writes)
            for (const Event& other : *cell.writes)
                if (other.actor / threads_per_block == thread / threads_per_block && is_before(other, thread)) writer = &other;
        if (!is_before(*writer, thread)) report("race: a read is not ordered after a write", region, index * CELL, now, *writer);
        if (!is_fresh && region->block < 0 && writer->actor < threads.size() && writer->clock >= first_clock &&
            writer->actor / threads_per_block != thread / threads_per_block)
            report("plain load of what another block wrote in this launch; the L1 cache may have an older value", region, index * CELL, now, *writer);
        if (is_before(cell.read, thread)) {
            cell.read = now;
            continue;
        }
        if (!cell.reads) cell.reads = new std::vector<Event>();
        bool found = false;
        for (Event& other : *cell.reads)
            if (other.actor == thread || is_before(other, thread)) {
                other = now;
                found = true;
                break;
            }
        if (!found) cell.reads->push_back(now);
    }
}

// `order` is the thread whose clock orders the write, which is not the actor where a copy writes.
void check_write(Region* region, const void* address, size_t bytes, u32 order, Event now) {
    if (region->cells.empty()) return;
    size_t first = (size_t)((const u8*)address - region->start);
    for (size_t index = first / CELL; index * CELL < first + bytes; index++) {
        Cell& cell = region->cells[index];
        if (!is_before(cell.write, order)) report("race: two writes are not ordered", region, index * CELL, now, cell.write);
        if (!is_before(cell.read, order)) report("race: a write is not ordered after a read", region, index * CELL, now, cell.read);
        if (cell.writes) {
            for (const Event& other : *cell.writes)
                if (!is_before(other, order)) report("race: two writes are not ordered", region, index * CELL, now, other);
            delete cell.writes;
            cell.writes = nullptr;
        }
        if (cell.reads) {
            for (const Event& other : *cell.reads)
                if (!is_before(other, order)) report("race: a write is not ordered after a read", region, index * CELL, now, other);
            delete cell.reads;
            cell.reads = nullptr;
        }
        cell.write = now;
        cell.read = {HOST, 0, 0};
    }
}

// g++ calls the check before the write, so a write is judged at the thread's next call: by then its bits are known.
struct {
    Region* region = nullptr;
    u8* address;
    size_t bytes;
    u32 thread, code;
    u8 before[16];
} waiting_write;

void judge_write() {
    if (!waiting_write.region) return;
    Region* region = waiting_write.region;
    waiting_write.region = nullptr;
    Event now = {waiting_write.thread, threads[waiting_write.thread].clock, waiting_write.code};
    if (region->allows_same_bits && memcmp(waiting_write.address, waiting_write.before, waiting_write.bytes) == 0) {
        size_t first = (size_t)(waiting_write.address - region->start);
        for (size_t index = first / CELL; index * CELL < first + waiting_write.bytes; index++) {
            Cell& cell = region->cells[index];
            if (is_before(cell.write, now.actor)) continue;
            if (!cell.writes) cell.writes = new std::vector<Event>();
            cell.writes->push_back(now);
        }
        return;
    }
    check_write(region, waiting_write.address, waiting_write.bytes, now.actor, now);
}

void start_write(Region* region, void* address, size_t bytes, u32 thread, u32 code) {
    if (region->cells.empty()) return;
    waiting_write.region = region;
    waiting_write.address = static_cast<u8*>(address);
    waiting_write.bytes = bytes;
    waiting_write.thread = thread;
    waiting_write.code = code;
    memcpy(waiting_write.before, address, bytes);
}

}
}
