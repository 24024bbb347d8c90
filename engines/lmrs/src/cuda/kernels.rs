//! The kernels' sources, their sizes as macros, and their compiled images, which are kept on disk for the next load.

use std::path::{Path, PathBuf};

use protocol::{Failed, FailureKind};

use super::nvrtc::{Nvrtc, SourceFile};
use crate::shape::Shape;

pub const DECODE: SourceFile = ("decode.cu", include_str!("kernels/decode.cu"));
pub const PREFILL: SourceFile = ("prefill.cu", include_str!("kernels/prefill.cu"));
/// The file that the others include.
const HEADERS: [SourceFile; 1] = [("device.cuh", include_str!("kernels/device.cuh"))];

/// The most warps of a block of `decode_step` that compute; one more copies the weights. On an H200, 6 took 4 % less time than 12 for
/// a token of llama-3.2-1b at position 500, and 2 % more at 8,192 (README.md).
const MAX_WARPS: usize = 6;

/// The macros for the sizes of a model, as options of NVRTC.
pub fn size_macros(shape: &Shape) -> Vec<String> {
    let Shape { vocabulary, hidden, inner, layers, heads, kv_heads, head_dim, norm_epsilon, .. } = *shape;
    let sizes = [
        ("VOCABULARY", vocabulary),
        ("HIDDEN", hidden),
        ("INNER", inner),
        ("LAYERS", layers),
        ("HEADS", heads),
        ("KV_HEADS", kv_heads),
        ("HEAD_DIM", head_dim),
    ];
    let sizes = sizes.map(|(name, size)| format!("-D{name}={size}"));
    sizes.into_iter().chain([format!("-DEPSILON={norm_epsilon:e}f")]).collect()
}

/// The ring of slots in shared memory through which `decode_step` reads the weights. `decode.cu` has the layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ring {
    /// Warps that compute, each with the same number of slots.
    pub warps: usize,
    pub slots: usize,
    pub slot_bytes: usize,
    /// All shared memory of a block.
    pub shared_bytes: usize,
}

impl Ring {
    /// The ring with the most bytes of weights in flight, for a block with this shared memory. `None` if rows are too long for
    /// two slots.
    pub fn new(shape: &Shape, max_shared_bytes: usize) -> Option<Self> {
        let matrices = matrices(shape);
        let candidates = matrices.iter().flat_map(|(inputs, _)| [1, 2, 4].map(|rows| 2 * inputs * rows));
        let rings = candidates.filter_map(|bytes| Self::with_slots_of(shape, max_shared_bytes, bytes));
        // Of equals, the smaller slots: they are free again sooner.
        rings.max_by_key(|ring| (ring.bytes_in_flight(&matrices), std::cmp::Reverse(ring.slot_bytes)))
    }

    /// The ring with as many slots of this size as fit. `None` if a row is longer than a slot, or if two slots do not fit.
    pub fn with_slots_of(shape: &Shape, max_shared_bytes: usize, slot_bytes: usize) -> Option<Self> {
        let slot_bytes = slot_bytes.next_multiple_of(128);
        // Each slot has two barriers of 8 bytes.
        let free_bytes = max_shared_bytes.checked_sub(shared_bytes_without_slots(shape, MAX_WARPS))?;
        let all_slots = free_bytes / (slot_bytes + 16);
        if all_slots < 2 {
            return None;
        }
        let slots_of_warp = all_slots.div_ceil(MAX_WARPS);
        let warps = all_slots / slots_of_warp;
        Self::with_sizes(shape, max_shared_bytes, [warps, warps * slots_of_warp, slot_bytes])
    }

    /// A ring with these numbers of warps, slots and bytes of a slot, if `decode_step` can use it and it fits.
    pub fn with_sizes(
        shape: &Shape,
        max_shared_bytes: usize,
        [warps, slots, slot_bytes]: [usize; 3],
    ) -> Option<Self> {
        let Shape { hidden, inner, heads, head_dim, .. } = *shape;
        let longest = (2 * inner).max(2 * heads * head_dim).max(4 * hidden);
        let shared_bytes = shared_bytes_without_slots(shape, warps) + slots * (slot_bytes + 16);
        let is_usable = slot_bytes >= longest && slot_bytes.is_multiple_of(16) && warps >= 2;
        let fits = slots >= 2 && slots.is_multiple_of(warps) && shared_bytes <= max_shared_bytes;
        (is_usable && fits).then_some(Self { warps, slots, slot_bytes, shared_bytes })
    }

    /// The bytes in all slots if they are full, on average over the bytes of a layer.
    fn bytes_in_flight(&self, matrices: &[(usize, usize)]) -> usize {
        let bytes = |(inputs, outputs): (usize, usize)| 2 * inputs * outputs;
        let all_bytes: usize = matrices.iter().copied().map(bytes).sum();
        let weighted = matrices.iter().map(|&(inputs, outputs)| {
            let slot_bytes = 2 * inputs * self.slot_rows(inputs);
            (slot_bytes as u128) * bytes((inputs, outputs)) as u128
        });
        (weighted.sum::<u128>() / all_bytes.max(1) as u128) as usize * self.slots
    }

    /// The rows of a matrix that one slot holds, as in `decode.cu`.
    fn slot_rows(&self, inputs: usize) -> usize {
        [4, 2].into_iter().find(|rows| rows * 2 * inputs <= self.slot_bytes).unwrap_or(1)
    }

    /// The threads of a block.
    pub fn threads(&self) -> usize {
        (self.warps + 1) * 32
    }

    pub fn macros(&self, blocks: u32) -> Vec<String> {
        let Self { warps, slots, slot_bytes, .. } = *self;
        let sizes =
            [("SLOTS", slots), ("SLOT_BYTES", slot_bytes), ("WARPS", warps), ("BLOCKS", blocks as usize)];
        sizes.map(|(name, size)| format!("-D{name}={size}")).to_vec()
    }
}

/// The inputs and the outputs of the matrices of a layer.
fn matrices(shape: &Shape) -> [(usize, usize); 4] {
    let Shape { hidden, inner, heads, kv_heads, head_dim, .. } = *shape;
    [
        (hidden, (heads + 2 * kv_heads) * head_dim),
        (heads * head_dim, hidden),
        (hidden, 2 * inner),
        (inner, hidden),
    ]
}

/// The heads that `decode_step` computes together, as in `decode.cu`.
fn heads_together(shape: &Shape) -> usize {
    let group = shape.heads / shape.kv_heads;
    if shape.head_dim > 128 {
        return 1;
    }
    [4, 3, 2].into_iter().find(|heads| group.is_multiple_of(*heads)).unwrap_or(1)
}

/// Numbers of a head's sums over some positions, as in `decode.cu`.
fn partial(shape: &Shape) -> usize {
    shape.head_dim + 4
}

/// The floats of the buffer `partials`.
pub fn partials(shape: &Shape, blocks: u32) -> usize {
    let head_groups = shape.heads / heads_together(shape);
    (blocks as usize / head_groups).max(1) * shape.heads * partial(shape)
}

/// The shared memory of a block of `decode_step` without its slots: the activations of a phase, angles and sums of warps.
fn shared_bytes_without_slots(shape: &Shape, warps: usize) -> usize {
    let Shape { hidden, inner, heads, head_dim, .. } = *shape;
    let padded = [hidden, heads * head_dim, inner].map(|inputs| inputs.next_multiple_of(256));
    let activations =
        padded.into_iter().max().unwrap_or_default().max(warps * heads_together(shape) * partial(shape));
    4 * activations + 4 * head_dim + 16 * warps
}

/// The target of NVRTC for a GPU. From 9.0 on, `a` adds the instructions of this capability only.
pub fn architecture((major, minor): (u32, u32)) -> String {
    format!("sm_{major}{minor}a")
}

/// Compiled kernels, and the version of their compiler.
#[derive(Debug, PartialEq, Eq)]
pub struct Image {
    pub bytes: Vec<u8>,
    pub nvrtc_version: String,
}

/// The compiled image of a file for this architecture, from the cache on disk or from NVRTC. A machine without NVRTC can use a
/// filled cache.
pub fn image(source: SourceFile, architecture: &str, macros: &[String]) -> Result<Image, Failed> {
    let fixed = [format!("--gpu-architecture={architecture}"), "--std=c++17".into()];
    let options: Vec<String> = fixed.iter().chain(macros).cloned().collect();
    let path = cache_path(source, &options);
    if let Some(image) = path.as_deref().and_then(read_image) {
        return Ok(image);
    }
    let nvrtc = Nvrtc::load()?;
    let bytes = nvrtc.compile(source, &HEADERS, &options)?;
    if bytes.is_empty() {
        let message = format!("NVRTC made no kernels for `{architecture}`");
        return Err(
            Failed::new(FailureKind::Unavailable, message).hint("use an NVRTC of the driver's CUDA version")
        );
    }
    let image = Image { bytes, nvrtc_version: nvrtc.version()? };
    if let Some(path) = path {
        write_image(&path, &image);
    }
    Ok(image)
}

/// The file for an image: its name is the digest of everything that the image depends on, except the version of NVRTC. A
/// removed file makes the next load compile again.
fn cache_path(source: SourceFile, options: &[String]) -> Option<PathBuf> {
    let texts = [source.1, HEADERS[0].1].into_iter().chain(options.iter().map(String::as_str));
    let text: String = texts.flat_map(|text| [text, "\0"]).collect();
    let name = format!("{}-{}.cubin", source.0.trim_end_matches(".cu"), paths::digest(text.as_bytes()));
    Some(paths::data_dir().ok()?.join("kernels").join(name))
}

/// Reads a file of `write_image`, if its digest is correct.
fn read_image(path: &Path) -> Option<Image> {
    let mut content = std::fs::read(path).ok()?;
    let digest = content.split_off(content.len().checked_sub(DIGEST_BYTES)?);
    if paths::digest(&content).as_bytes() != digest {
        return None;
    }
    let end = content.iter().position(|byte| *byte == b'\n')?;
    let nvrtc_version = String::from_utf8_lossy(&content[..end]).into_owned();
    Some(Image { bytes: content.split_off(end + 1), nvrtc_version })
}

/// The length of `paths::digest`.
const DIGEST_BYTES: usize = 16;

/// Writes an image for the next load: a line with the version, the image, a digest of both. A failure is ignored, because the
/// image can be compiled again.
fn write_image(path: &Path, image: &Image) {
    let (Some(folder), temporary) =
        (path.parent(), path.with_extension(format!("{}.new", std::process::id())))
    else {
        return;
    };
    let mut content = [image.nvrtc_version.as_bytes(), b"\n", &image.bytes].concat();
    let digest = paths::digest(&content);
    content.extend(digest.as_bytes());
    let written = std::fs::create_dir_all(folder).and_then(|()| std::fs::write(&temporary, content));
    if written.and_then(|()| std::fs::rename(&temporary, path)).is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::network::Rotation;

    /// Llama 3.2 1B.
    pub fn llama_1b() -> Shape {
        Shape {
            vocabulary: 128_256,
            hidden: 2048,
            inner: 8192,
            layers: 16,
            heads: 32,
            kv_heads: 8,
            head_dim: 64,
            context: 131_072,
            windows: vec![None; 16],
            rotation: Some(Rotation::new(500_000.0, 64)),
            ..crate::shape::tests::tiny()
        }
    }

    /// Llama 3.1 8B.
    fn llama_8b() -> Shape {
        Shape { hidden: 4096, inner: 14_336, layers: 32, head_dim: 128, ..llama_1b() }
    }

    /// The most shared memory of a block on an H100.
    const H100_BYTES: usize = 232_448;

    #[test]
    fn the_ring_has_the_most_bytes_in_flight_that_fit() {
        let ring = Ring::new(&llama_1b(), H100_BYTES).unwrap();
        assert_eq!((ring.warps, ring.slots, ring.slot_bytes), (6, 12, 16_384));
        // The slots with their barriers, 8192 activations, 64 angles, and 16 bytes for each of 6 warps.
        assert_eq!(ring.shared_bytes, 12 * (16_384 + 16) + 4 * 8192 + 4 * 64 + 16 * 6);
        let ring = Ring::new(&llama_8b(), H100_BYTES).unwrap();
        assert_eq!((ring.warps, ring.slots, ring.slot_bytes), (5, 5, 32_768));
        assert!(ring.shared_bytes <= H100_BYTES);
    }

    #[test]
    fn each_warp_has_the_same_number_of_slots() {
        // 27 slots of 8192 bytes would fit; five for each of 5 warps are used.
        let shape = Shape { inner: 2048, ..llama_1b() };
        let ring = Ring::with_slots_of(&shape, H100_BYTES, 8192).unwrap();
        assert_eq!((ring.warps, ring.slots), (5, 25));
        let with_sizes = |sizes| Ring::with_sizes(&shape, H100_BYTES, sizes);
        assert_eq!(with_sizes([5, 25, 8192]), Some(ring));
        for unusable in [[13, 25, 8192], [1, 25, 8192], [5, 25, 4096], [5, 25, 8200], [14, 28, 8192]] {
            assert_eq!(with_sizes(unusable), None, "{unusable:?}");
        }
    }

    #[test]
    fn rows_that_are_too_long_for_two_slots_have_no_ring() {
        assert_eq!(Ring::new(&Shape { inner: 65_536, ..llama_1b() }, H100_BYTES), None);
        assert_eq!(Ring::with_slots_of(&llama_1b(), H100_BYTES, 8192), None);
        assert_eq!(Ring::new(&llama_1b(), 1000), None);
    }

    #[test]
    fn sums_of_each_split_have_room() {
        // 132 blocks and 8 groups of heads: 16 splits.
        assert_eq!(partials(&llama_1b(), 132), 16 * 32 * 68);
        assert_eq!(partials(&llama_1b(), 4), 32 * 68);
    }

    #[test]
    fn sizes_become_macros() {
        let macros = size_macros(&llama_1b());
        assert!(
            macros.contains(&"-DHIDDEN=2048".to_string()) && macros.contains(&"-DEPSILON=1e-5f".to_string())
        );
        let ring = Ring::new(&llama_1b(), H100_BYTES).unwrap();
        assert_eq!(ring.macros(132), ["-DSLOTS=12", "-DSLOT_BYTES=16384", "-DWARPS=6", "-DBLOCKS=132"]);
    }

    #[test]
    fn a_damaged_image_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b.cubin");
        let image = Image { bytes: b"some\nbytes".to_vec(), nvrtc_version: "13.0".into() };
        write_image(&path, &image);
        assert_eq!(read_image(&path), Some(image));
        let content = std::fs::read(&path).unwrap();
        for damaged in [content[..3].to_vec(), [b"x", &content[1..]].concat()] {
            std::fs::write(&path, damaged).unwrap();
            assert_eq!(read_image(&path), None);
        }
    }

    /// Runs only where NVRTC is installed: it needs no GPU.
    #[test]
    fn the_kernels_compile_where_nvrtc_is_installed() {
        let Ok(nvrtc) = Nvrtc::load() else { return };
        let shape = llama_1b();
        let ring = Ring::new(&shape, H100_BYTES).unwrap();
        let fixed = ["--gpu-architecture=sm_90a".to_string(), "--std=c++17".to_string()];
        let options: Vec<String> =
            fixed.into_iter().chain(size_macros(&shape)).chain(ring.macros(132)).collect();
        for source in [DECODE, PREFILL] {
            let image = nvrtc.compile(source, &HEADERS, &options).unwrap();
            assert!(image.starts_with(b"\x7fELF"));
        }
    }
}
