//! A tensor as a header describes it: where its bytes lie, never the bytes.

/// One tensor of a weights file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    pub name: String,
    /// As the format spells it: `F32`, `BF16`, `Q4_K`.
    pub dtype: &'static str,
    /// Outermost dimension first, whatever the format's own order.
    pub shape: Vec<u64>,
    /// Which of `ModelFolder::weights` holds it.
    pub file: usize,
    /// Where its bytes begin in that file.
    pub offset: u64,
    pub bytes: u64,
}

impl Tensor {
    /// Headers with a shape whose product overflows are refused, so this does not.
    pub fn elements(&self) -> u64 {
        self.shape.iter().product()
    }
}

/// The number of elements, unless the claim overflows, in whatever order the dimensions are multiplied: a zero among them
/// does not make the others small.
pub(crate) fn checked_elements(shape: &[u64]) -> Option<u64> {
    let others = shape.iter().filter(|&&dimension| dimension != 0);
    let product = others.clone().try_fold(1_u64, |product, &dimension| product.checked_mul(dimension))?;
    Some(if others.count() == shape.len() { product } else { 0 })
}
