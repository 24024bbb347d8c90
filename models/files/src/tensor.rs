//! A tensor as a header describes it: the position of its bytes, never the bytes.

/// One tensor of a weights file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    pub name: String,
    /// The dtype in the format's spelling: `F32`, `BF16`, `Q4_K`.
    pub dtype: &'static str,
    /// Outermost dimension first, in every format.
    pub shape: Vec<u64>,
    /// The index of its file in `ModelFolder::weights`.
    pub file: usize,
    /// The offset of its bytes in that file.
    pub offset: u64,
    pub bytes: u64,
}

impl Tensor {
    /// Does not overflow: headers with an overflowing shape are refused.
    pub fn elements(&self) -> u64 {
        self.shape.iter().product()
    }
}

/// The number of elements, unless the product overflows in some order of the dimensions. A zero dimension does not hide the
/// overflow of the others.
pub(crate) fn checked_elements(shape: &[u64]) -> Option<u64> {
    let others = shape.iter().filter(|&&dimension| dimension != 0);
    let product = others.clone().try_fold(1_u64, |product, &dimension| product.checked_mul(dimension))?;
    Some(if others.count() == shape.len() { product } else { 0 })
}
