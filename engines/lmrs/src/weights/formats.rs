//! Which format each matrix gets: what was asked for, as far as its rows allow.

use model_files::{Dtype, Part};
use protocol::{Failed, FailureKind};

use crate::kernels::zipped;
use crate::matrix::Format;
use crate::shape::Shape;

/// Numbers of Q8_0 and Q4_0 that share a scale.
const BLOCK: usize = 32;

/// What weights are loaded as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// As the file has them.
    Own,
    Float(Dtype),
    /// bf16 with exponents of four bits, where rows allow it.
    Bf16z,
    Q8_0,
    Q4_0,
}

impl Asked {
    /// By the names of the protocol; `own` is what most of the file's bytes are.
    pub fn named(name: Option<&str>, own: &str) -> Result<Self, Failed> {
        match name {
            None => Ok(Self::Own),
            Some(name) if name.eq_ignore_ascii_case(own) => Ok(Self::Own),
            Some("f32") => Ok(Self::Float(Dtype::F32)),
            Some("bf16") => Ok(Self::Float(Dtype::BF16)),
            Some("f16") => Ok(Self::Float(Dtype::F16)),
            Some("bf16z") => Ok(Self::Bf16z),
            Some("q8_0") => Ok(Self::Q8_0),
            Some("q4_0") => Ok(Self::Q4_0),
            Some(other) => {
                let what = format!(
                    "dtype `{}`: not one of `f32`, `bf16`, `bf16z`, `f16`, `q8_0`, `q4_0`",
                    other.escape_debug()
                );
                Err(Failed::new(FailureKind::Unsupported, what))
            }
        }
    }

    /// Refuses blocks that the rows of no matrix divide into: the load would be one of the files' own numbers.
    pub fn expect_taken(self, shape: &Shape) -> Result<(), Failed> {
        let (Self::Q8_0 | Self::Q4_0) = self else { return Ok(()) };
        let rows = [shape.hidden, shape.heads * shape.head_dim, shape.inner];
        if rows.iter().any(|inputs| inputs.is_multiple_of(BLOCK)) {
            return Ok(());
        }
        let [hidden, heads, inner] = rows;
        let what = format!(
            "no matrix can be rounded to blocks of {BLOCK}: rows have {hidden}, {heads} and {inner} numbers"
        );
        let failed = Failed::new(FailureKind::Unsupported, what);
        Err(failed.hint("leave `dtype` out, or ask for `f32`, `bf16` or `f16`"))
    }

    /// The dtype that a matrix is encoded in, and the format that it is kept in.
    pub fn of(self, part: &Part, stored: Dtype, inputs: u64) -> Result<(Dtype, Format), Failed> {
        let dtype = match self {
            Self::Own => stored,
            Self::Float(dtype) => dtype,
            Self::Bf16z => Dtype::BF16,
            Self::Q8_0 => Dtype::Q8_0,
            Self::Q4_0 => Dtype::Q4_0,
        };
        if !stored.is_float() && !dtype.is_float() && dtype != stored {
            let (stored, dtype) = (stored.as_str(), dtype.as_str());
            let what =
                format!("tensor `{}` is {stored}, and would be rounded a second time as {dtype}", part.gguf);
            let failed = Failed::new(FailureKind::Unsupported, what);
            return Err(failed.hint("leave `dtype` out: the model is loaded as the file has it"));
        }
        // Rows that do not divide into blocks stay what they are.
        let fits = inputs.is_multiple_of(dtype.block().0 as u64);
        let dtype = if fits { dtype } else { stored };
        if self == Self::Bf16z && zipped::takes(inputs as usize) {
            return Ok((Dtype::BF16, Format::Bf16z));
        }
        // Blocks that no kernel reads are widened to what holds every one of their numbers nearly.
        Ok(Format::of(dtype).map_or((Dtype::F16, Format::F16), |format| (dtype, format)))
    }

    /// What a row of the embedding is rounded to: blocks are the output's, and looked up there.
    pub fn of_embedding(self) -> Option<Dtype> {
        match self {
            Self::Float(dtype) => Some(dtype),
            Self::Bf16z => Some(Dtype::BF16),
            Self::Own | Self::Q8_0 | Self::Q4_0 => None,
        }
    }
}
