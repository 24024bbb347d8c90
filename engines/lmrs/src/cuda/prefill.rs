//! Many rows in one pass: prompts, scores and batches. cuBLAS computes the products, and the kernels of `prefill.cu` the rest.
#![expect(unsafe_code, reason = "launches kernels")]

mod products;

use std::cmp::Reverse;
use std::ffi::c_void;
use std::rc::Rc;

use protocol::{Failed, FailureKind};

use super::cache::CudaCache;
use super::driver::{Address, Gpu, HostMemory, Kernel, Memory, Module};
use super::kernels::{self, Image};
use super::step::not_finite;
use super::weights::{DeviceWeights, LayerAddresses};
use crate::matrix::Rows;
use crate::model::MAX_PASS_ROWS;
use crate::shape::Shape;
use products::{Matrix, Out, Products, WORKSPACE_BYTES};

/// The most rows of a pass.
pub const MAX_ROWS: usize = 1024;
const _: () = assert!(MAX_PASS_ROWS <= MAX_ROWS, "a part of a prompt is one pass");
/// The most rows of logits in device memory: 32 rows of a vocabulary of 128,256 take 16 MB.
const LOGIT_ROWS: usize = 32;
/// The id of a row if a logit is NaN or infinite.
const NOT_FINITE: u32 = u32::MAX;
/// Threads of a block of most kernels: `THREADS` in `prefill.cu`.
const THREADS: usize = 256;
/// The pairs of a query head and a row that a block of `attend_rows` computes.
const TILE_PAIRS: usize = 64;

/// One id of a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// The address of the sequence's cache.
    pub cache: Address,
    /// The cache's capacity in positions.
    pub capacity: u32,
    pub position: u32,
    pub id: u32,
}

/// The kernels and the buffers for passes of many rows.
pub struct Prefill {
    products: Products,
    kernels: Kernels,
    buffers: Buffers,
    sizes: Sizes,
    /// The number of rows of the last pass.
    rows: usize,
    /// Bytes for the next copy to the device.
    bytes: Vec<u8>,
}

#[derive(Debug, Clone, Copy)]
struct Sizes {
    hidden: usize,
    inner: usize,
    vocabulary: usize,
    kv_heads: usize,
    /// Query heads for each head of keys and values.
    group: usize,
    head_dim: usize,
    /// All query heads.
    queries: usize,
    /// All heads of queries, keys and values.
    qkv: usize,
}

struct Kernels {
    embed: Kernel,
    angles: Kernel,
    norm: Kernel,
    rotate: Kernel,
    attend: Kernel,
    activate: Kernel,
    largest: Kernel,
}

struct Buffers {
    pass: Memory,        // the pass's `Row`s, then its `Tile`s
    frequencies: Memory, // [head_dim / 2] f32
    cosines: Memory,     // [MAX_ROWS, head_dim / 2] f32
    sines: Memory,       // [MAX_ROWS, head_dim / 2] f32
    hidden: Memory,      // [MAX_ROWS, hidden] f32
    normed: Memory,      // [MAX_ROWS, hidden] bf16
    qkv: Memory,         // [MAX_ROWS, qkv] f32
    queries: Memory,     // [MAX_ROWS, queries] f16
    attended: Memory,    // [MAX_ROWS, queries] bf16
    gate_up: Memory,     // [MAX_ROWS, 2, inner] f32
    inner: Memory,       // [MAX_ROWS, inner] bf16
    selected: Memory,    // [LOGIT_ROWS] u32
    logits: Memory,      // [LOGIT_ROWS, vocabulary] f32
    ids: Memory,         // [LOGIT_ROWS] u32
    /// [LOGIT_ROWS, vocabulary] f32
    host_logits: HostMemory,
}

impl Sizes {
    fn of(shape: &Shape) -> Self {
        let Shape { vocabulary, hidden, inner, heads, kv_heads, head_dim, .. } = *shape;
        let (queries, qkv) = (heads * head_dim, (heads + 2 * kv_heads) * head_dim);
        Self { hidden, inner, vocabulary, kv_heads, group: heads / kv_heads, head_dim, queries, qkv }
    }

    /// The tiles of a pass: at most one for each row and 64 query heads, rounded up.
    fn max_tiles(&self) -> usize {
        MAX_ROWS * self.group.div_ceil(TILE_PAIRS)
    }
}

/// The bytes of all buffers in device memory.
pub fn bytes_for(shape: &Shape) -> u64 {
    let sizes = Sizes::of(shape);
    let buffers: usize = buffer_bytes(&sizes).iter().sum();
    (buffers + WORKSPACE_BYTES) as u64
}

/// The bytes of each buffer, in the order of `Buffers`.
fn buffer_bytes(sizes: &Sizes) -> [usize; 14] {
    let Sizes { hidden, inner, vocabulary, head_dim, queries, qkv, .. } = *sizes;
    let half_dim = head_dim / 2;
    [
        MAX_ROWS * ROW_BYTES + sizes.max_tiles() * TILE_BYTES,
        4 * half_dim,
        MAX_ROWS * 4 * half_dim,
        MAX_ROWS * 4 * half_dim,
        MAX_ROWS * 4 * hidden,
        MAX_ROWS * 2 * hidden,
        MAX_ROWS * 4 * qkv,
        MAX_ROWS * 2 * queries,
        MAX_ROWS * 2 * queries,
        MAX_ROWS * 4 * 2 * inner,
        MAX_ROWS * 2 * inner,
        LOGIT_ROWS * 4,
        LOGIT_ROWS * 4 * vocabulary,
        LOGIT_ROWS * 4,
    ]
}

/// Pointers to the values, for a launch.
macro_rules! parameters {
    ($($value:expr),* $(,)?) => {
        [$((&raw const $value).cast::<c_void>()),*]
    };
}

impl Prefill {
    /// Compiles the kernels and allocates the buffers. `shape` has one of the head dimensions that `prefill.cu` accepts.
    pub fn new(gpu: &Rc<Gpu>, shape: &Shape) -> Result<Self, Failed> {
        let architecture = kernels::architecture(gpu.capability);
        let Image { bytes, .. } =
            kernels::image(kernels::PREFILL, &architecture, &kernels::size_macros(shape))?;
        let kernels = Kernels::of(&gpu.load_module(&bytes)?)?;
        let sizes = Sizes::of(shape);
        let buffers = Buffers::new(gpu, &sizes)?;
        let frequencies =
            shape.rotation.as_ref().map(|rotation| rotation.frequencies.as_slice()).unwrap_or_default();
        if frequencies.len() != sizes.head_dim / 2 {
            return Err(super::only_on_cpu("positions other than a rotation of whole heads"));
        }
        let bytes: Vec<u8> = frequencies.iter().flat_map(|frequency| frequency.to_le_bytes()).collect();
        buffers.frequencies.write(0, &bytes)?;
        Ok(Self { products: Products::new(gpu)?, kernels, buffers, sizes, rows: 0, bytes: Vec::new() })
    }

    /// Appends an id for each row: starts all layers, which write the keys and values into the caches. Rows of one sequence are
    /// adjacent and in the order of their positions. Waits only for work that was started before.
    ///
    /// # Safety
    /// Each cache has the layout of `CudaCache` with this capacity, and is valid until the work has finished.
    pub unsafe fn run(&mut self, weights: &DeviceWeights, rows: &[Row]) -> Result<(), Failed> {
        self.check(rows)?;
        let count = rows.len() as u32;
        self.rows = rows.len();
        if rows.is_empty() {
            return Ok(());
        }
        let tiles = tiles(rows, self.sizes.group);
        self.bytes.clear();
        rows.iter().for_each(|row| row.write(&mut self.bytes));
        tiles.iter().for_each(|tile| tile.write(&mut self.bytes));
        self.buffers.pass.write(0, &self.bytes)?;

        let Self { kernels, buffers, sizes, .. } = self;
        let (rows, cosines, sines) =
            (buffers.pass.address(), buffers.cosines.address(), buffers.sines.address());
        let (hidden, frequencies) = (buffers.hidden.address(), buffers.frequencies.address());
        let angle_blocks = (self.rows * sizes.head_dim / 2).div_ceil(THREADS) as u32;
        // SAFETY: the parameters have the kernels' types. The buffers have room for MAX_ROWS rows, and the ids are inside of the
        // vocabulary.
        unsafe {
            kernels.embed.launch([count, 1, 1], &parameters![weights.embedding, rows, hidden])?;
            let parameters = parameters![rows, count, frequencies, cosines, sines];
            kernels.angles.launch([angle_blocks, 1, 1], &parameters)?;
        }
        for (number, layer) in weights.layers.iter().enumerate() {
            // SAFETY: the caller guarantees the caches, and the rows were checked.
            unsafe { self.run_layer(number as u32, layer, tiles.len() as u32)? };
        }
        Ok(())
    }

    /// # Safety
    /// As for `run`, whose rows and tiles are in the buffers.
    unsafe fn run_layer(&self, number: u32, layer: &LayerAddresses, tiles: u32) -> Result<(), Failed> {
        let Self { kernels, buffers, sizes, .. } = self;
        let Sizes { hidden, inner, queries, qkv, kv_heads, .. } = *sizes;
        let count = self.rows as u32;
        let (rows, tile_list) =
            (buffers.pass.address(), buffers.pass.address() + (self.rows * ROW_BYTES) as u64);
        let (cosines, sines) = (buffers.cosines.address(), buffers.sines.address());
        let (hidden_rows, normed, qkv_rows) =
            (buffers.hidden.address(), buffers.normed.address(), buffers.qkv.address());
        let (query_rows, attended) = (buffers.queries.address(), buffers.attended.address());
        let (gate_up, inner_rows) = (buffers.gate_up.address(), buffers.inner.address());
        let every_row: Address = 0;
        // SAFETY: the parameters have the kernels' types, the buffers have room for MAX_ROWS rows, and the matrices have these
        // sizes. The caller guarantees the caches.
        unsafe {
            kernels
                .norm
                .launch([count, 1, 1], &parameters![hidden_rows, layer.attention_norm, every_row, normed])?;
            self.multiply(normed, (layer.qkv, qkv, hidden), (qkv_rows, qkv, false))?;
            let parameters = parameters![qkv_rows, rows, cosines, sines, number, query_rows];
            kernels.rotate.launch([count, 1, 1], &parameters)?;
            let parameters = parameters![query_rows, tile_list, number, attended];
            kernels.attend.launch([kv_heads as u32, tiles, 1], &parameters)?;
            self.multiply(attended, (layer.attention_output, hidden, queries), (hidden_rows, hidden, true))?;

            kernels.norm.launch(
                [count, 1, 1],
                &parameters![hidden_rows, layer.feed_forward_norm, every_row, normed],
            )?;
            if layer.up == layer.gate + (2 * inner * hidden) as u64 {
                // One matrix in memory: one product.
                self.multiply(normed, (layer.gate, 2 * inner, hidden), (gate_up, 2 * inner, false))?;
            } else {
                let up_part = gate_up + 4 * inner as u64;
                self.multiply(normed, (layer.gate, inner, hidden), (gate_up, 2 * inner, false))?;
                self.multiply(normed, (layer.up, inner, hidden), (up_part, 2 * inner, false))?;
            }
            let blocks = (inner / 4).div_ceil(THREADS) as u32;
            kernels.activate.launch([count, blocks, 1], &parameters![gate_up, inner_rows])?;
            self.multiply(inner_rows, (layer.down, hidden, inner), (hidden_rows, hidden, true))
        }
    }

    /// Starts a product of all rows of the pass.
    ///
    /// # Safety
    /// As for `Products::start`.
    unsafe fn multiply(
        &self,
        input: Address,
        (address, outputs, inputs): (Address, usize, usize),
        (out, stride, adds): (Address, usize, bool),
    ) -> Result<(), Failed> {
        let (matrix, out) = (Matrix { address, outputs, inputs }, Out { address: out, stride, adds });
        // SAFETY: the caller guarantees the memory.
        unsafe { self.products.start(input, self.rows, matrix, out) }
    }

    /// Computes a pass of as many rows as a part of a prompt, so that the driver and cuBLAS load their kernels before the first
    /// request. The cache is of the same model, and its contents are lost. Waits.
    pub fn warm_up(&mut self, weights: &DeviceWeights, cache: &CudaCache) -> Result<(), Failed> {
        let (address, capacity) = (cache.address(), cache.capacity() as u32);
        let row = |position| Row { cache: address, capacity, position, id: 0 };
        let rows: Vec<Row> = (0..capacity.min(MAX_PASS_ROWS as u32)).map(row).collect();
        // SAFETY: the cache has its layout, and lives until the result was read.
        unsafe { self.run(weights, &rows) }?;
        // NaN is an error of a request.
        match self.largest(weights, &[0], &mut Vec::new()) {
            Err(failed) if failed.kind != FailureKind::Model => Err(failed),
            _ => Ok(()),
        }
    }

    /// Appends the likeliest id after each of these rows of the last pass. Waits for them.
    pub fn largest(
        &mut self,
        weights: &DeviceWeights,
        rows: &[usize],
        ids: &mut Vec<u32>,
    ) -> Result<(), Failed> {
        for rows in rows.chunks(LOGIT_ROWS) {
            self.start_logits(weights, rows)?;
            let (logits, out) = (self.buffers.logits.address(), self.buffers.ids.address());
            // SAFETY: the parameters have the kernel's types, and the buffers have room for LOGIT_ROWS rows.
            unsafe { self.kernels.largest.launch([rows.len() as u32, 1, 1], &parameters![logits, out])? };
            self.bytes.clear();
            self.bytes.resize(4 * rows.len(), 0);
            self.buffers.ids.read(0, &mut self.bytes)?;
            for bytes in self.bytes.as_chunks::<4>().0 {
                match u32::from_le_bytes(*bytes) {
                    NOT_FINITE => return Err(not_finite()),
                    id => ids.push(id),
                }
            }
        }
        Ok(())
    }

    /// Appends the logits after each of these rows of the last pass, `[rows, vocabulary]`. Waits for them.
    pub fn logits(
        &mut self,
        weights: &DeviceWeights,
        rows: &[usize],
        logits: &mut Rows,
    ) -> Result<(), Failed> {
        let vocabulary = self.sizes.vocabulary;
        for rows in rows.chunks(LOGIT_ROWS) {
            self.start_logits(weights, rows)?;
            let count = rows.len() * vocabulary;
            self.buffers.logits.start_read(0, &self.buffers.host_logits, 0, 4 * count)?;
            logits.append(self.buffers.host_logits.finished_floats(count)?);
        }
        Ok(())
    }

    /// Starts the computation of the logits after at most LOGIT_ROWS rows of the last pass.
    fn start_logits(&mut self, weights: &DeviceWeights, rows: &[usize]) -> Result<(), Failed> {
        let Sizes { hidden, vocabulary, .. } = self.sizes;
        assert!(rows.len() <= LOGIT_ROWS && rows.iter().all(|row| *row < self.rows), "rows of the last pass");
        let Some(first) = rows.first() else { return Ok(()) };
        let Self { products, kernels, buffers, bytes, .. } = self;
        let mut hidden_rows = buffers.hidden.address();
        let mut selected: Address = 0;
        if rows.iter().copied().eq(*first..first + rows.len()) {
            // Without a copy to the device, which would wait for all layers.
            hidden_rows += (4 * first * hidden) as u64;
        } else {
            bytes.clear();
            bytes.extend(rows.iter().flat_map(|row| (*row as u32).to_le_bytes()));
            buffers.selected.write(0, bytes)?;
            selected = buffers.selected.address();
        }
        let (normed, logits) = (buffers.normed.address(), buffers.logits.address());
        let matrix = Matrix { address: weights.output, outputs: vocabulary, inputs: hidden };
        let out = Out { address: logits, stride: vocabulary, adds: false };
        // SAFETY: the parameters have the kernel's types, the rows exist, and the buffers have room for LOGIT_ROWS rows.
        unsafe {
            let parameters = parameters![hidden_rows, weights.norm, selected, normed];
            kernels.norm.launch([rows.len() as u32, 1, 1], &parameters)?;
            products.start(normed, rows.len(), matrix, out)
        }
    }

    /// Refuses rows that do not fit: too many, an id outside of the vocabulary, or a position beyond the cache.
    fn check(&self, rows: &[Row]) -> Result<(), Failed> {
        let vocabulary = self.sizes.vocabulary;
        let fits = |row: &Row| row.position < row.capacity && (row.id as usize) < vocabulary;
        if rows.len() <= MAX_ROWS && rows.iter().all(fits) {
            return Ok(());
        }
        let message =
            format!("a pass of {} rows has too many rows, or an id or a position out of range", rows.len());
        Err(Failed::new(FailureKind::Internal, message))
    }
}

impl Kernels {
    fn of(module: &Rc<Module>) -> Result<Self, Failed> {
        let kernel = |name, threads: usize| module.kernel(name, threads as u32, 0);
        Ok(Self {
            embed: kernel("embed_rows", THREADS)?,
            angles: kernel("compute_angles", THREADS)?,
            norm: kernel("norm_rows", THREADS)?,
            rotate: kernel("rotate_and_store", THREADS)?,
            attend: kernel("attend_rows", 128)?,
            activate: kernel("activate_rows", THREADS)?,
            largest: kernel("largest_rows", 1024)?,
        })
    }
}

impl Buffers {
    fn new(gpu: &Rc<Gpu>, sizes: &Sizes) -> Result<Self, Failed> {
        let mut bytes = buffer_bytes(sizes).into_iter();
        let mut next = || gpu.allocate(bytes.next().unwrap_or_default());
        Ok(Self {
            pass: next()?,
            frequencies: next()?,
            cosines: next()?,
            sines: next()?,
            hidden: next()?,
            normed: next()?,
            qkv: next()?,
            queries: next()?,
            attended: next()?,
            gate_up: next()?,
            inner: next()?,
            selected: next()?,
            logits: next()?,
            ids: next()?,
            host_logits: gpu.allocate_host(LOGIT_ROWS * 4 * sizes.vocabulary)?,
        })
    }
}

/// The bytes of `Row` and `Tile` in `prefill.cu`.
const ROW_BYTES: usize = 24;
const TILE_BYTES: usize = 32;

impl Row {
    fn write(&self, bytes: &mut Vec<u8>) {
        let Self { cache, capacity, position, id } = *self;
        bytes.extend(cache.to_le_bytes());
        bytes.extend([position, capacity, id, 0].iter().flat_map(|number| number.to_le_bytes()));
    }
}

/// The work of a block of `attend_rows` for one head of keys and values: at most TILE_PAIRS pairs of a segment, which is a run of
/// rows of one sequence with consecutive positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Tile {
    cache: Address,
    capacity: u32,
    first_row: u32,
    rows: u32,
    first_position: u32,
    first_pair: u32,
}

impl Tile {
    fn write(&self, bytes: &mut Vec<u8>) {
        let Self { cache, capacity, first_row, rows, first_position, first_pair } = *self;
        bytes.extend(cache.to_le_bytes());
        let numbers = [capacity, first_row, rows, first_position, first_pair, 0];
        bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
    }
}

/// The tiles of a pass, those with the most keys first: the last blocks to start are then short ones.
fn tiles(rows: &[Row], group: usize) -> Vec<Tile> {
    let continues = |a: &Row, b: &Row| a.cache == b.cache && a.position + 1 == b.position;
    let (mut tiles, mut first_row) = (Vec::new(), 0);
    for segment in rows.chunk_by(continues) {
        let Row { cache, capacity, position: first_position, .. } = segment[0];
        let rows = segment.len() as u32;
        for first_pair in (0..segment.len() * group).step_by(TILE_PAIRS) {
            let first_pair = first_pair as u32;
            tiles.push(Tile { cache, capacity, first_row, rows, first_position, first_pair });
        }
        first_row += rows;
    }
    tiles.sort_by_key(|tile| {
        let last_pair = (tile.first_pair as usize + TILE_PAIRS).min(tile.rows as usize * group) - 1;
        Reverse(tile.first_position as usize + last_pair / group)
    });
    tiles
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::kernels::tests::llama_1b;

    fn rows(cache: Address, positions: std::ops::Range<u32>) -> impl Iterator<Item = Row> {
        positions.map(move |position| Row { cache, capacity: 1000, position, id: 5 })
    }

    #[test]
    fn tiles_cover_each_pair_of_a_row_and_a_head_once() {
        for group in [1, 4, 7, 100] {
            let all: Vec<Row> =
                rows(1, 10..11).chain(rows(2, 0..70)).chain(rows(3, 5..7)).chain(rows(4, 7..8)).collect();
            let tiles = tiles(&all, group);
            assert!(tiles.len() <= all.len() * group.div_ceil(TILE_PAIRS));
            let mut pairs = Vec::new();
            for tile in &tiles {
                let segment = &all[tile.first_row as usize..][..tile.rows as usize];
                let end = (tile.first_pair as usize + TILE_PAIRS).min(segment.len() * group);
                for pair in tile.first_pair as usize..end {
                    let row = segment[pair / group];
                    assert_eq!(
                        (row.cache, row.position),
                        (tile.cache, tile.first_position + (pair / group) as u32)
                    );
                    pairs.push((tile.first_row as usize + pair / group, pair % group));
                }
            }
            pairs.sort_unstable();
            let expected: Vec<_> =
                (0..all.len()).flat_map(|row| (0..group).map(move |head| (row, head))).collect();
            assert_eq!(pairs, expected);
        }
    }

    #[test]
    fn a_jump_in_positions_starts_a_segment() {
        let all: Vec<Row> = rows(1, 0..2).chain(rows(1, 7..8)).collect();
        let segments: Vec<_> =
            tiles(&all, 4).iter().map(|tile| (tile.first_row, tile.rows, tile.first_position)).collect();
        assert_eq!(segments, [(2, 1, 7), (0, 2, 0)]);
    }

    #[test]
    fn rows_and_tiles_have_the_layout_of_the_kernels() {
        let (mut row, mut tile) = (Vec::new(), Vec::new());
        Row { cache: 1, capacity: 2, position: 3, id: 4 }.write(&mut row);
        Tile { cache: 1, capacity: 2, first_row: 3, rows: 4, first_position: 5, first_pair: 6 }
            .write(&mut tile);
        let numbers = |bytes: &[u8]| -> Vec<u32> {
            bytes.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect()
        };
        assert_eq!((row.len(), numbers(&row)), (ROW_BYTES, vec![1, 0, 3, 2, 4, 0]));
        assert_eq!((tile.len(), numbers(&tile)), (TILE_BYTES, vec![1, 0, 2, 3, 4, 5, 6, 0]));
    }

    #[test]
    fn buffers_of_a_small_model_take_a_quarter_of_a_gigabyte() {
        let mb = bytes_for(&llama_1b()) >> 20;
        assert!((150..256).contains(&mb), "{mb}");
    }
}
