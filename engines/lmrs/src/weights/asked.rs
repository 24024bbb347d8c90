//! The format of each matrix: the requested one, as far as its rows allow.

use model_files::{Dtype, Part};
use protocol::{Failed, FailureKind};

use crate::formats::{F16, Format};
use crate::shape::Shape;

/// The requested format of weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// The file's own formats.
    Own,
    /// This format, for matrices with suitable rows.
    Format(&'static Format),
}

impl Asked {
    /// Resolves a name of the protocol; `own` is the format with most of the file's bytes.
    pub fn named(name: Option<&str>, own: &str) -> Result<Self, Failed> {
        let Some(name) = name.filter(|name| !name.eq_ignore_ascii_case(own)) else { return Ok(Self::Own) };
        match Format::named(name).filter(|format| format.by_name) {
            Some(format) => Ok(Self::Format(format)),
            None => {
                let known: Vec<_> = Format::names().collect();
                let what = format!("dtype `{}`: not one of `{}`", name.escape_debug(), known.join("`, `"));
                Err(Failed::new(FailureKind::Unsupported, what))
            }
        }
    }

    /// Refuses a block format that no matrix's rows divide into, because the load would have only the file's own numbers.
    pub fn expect_taken(self, shape: &Shape) -> Result<(), Failed> {
        let Some(dtype) = self.dtype().filter(|dtype| !dtype.is_float()) else { return Ok(()) };
        let block = dtype.block().0;
        let rows = [shape.hidden, shape.heads * shape.head_dim, shape.inner];
        if rows.iter().any(|inputs| inputs.is_multiple_of(block)) {
            return Ok(());
        }
        let [hidden, heads, inner] = rows;
        let what = format!(
            "no matrix can be rounded to blocks of {block}: rows have {hidden}, {heads} and {inner} numbers"
        );
        let failed = Failed::new(FailureKind::Unsupported, what);
        Err(failed.hint("leave `dtype` out, or ask for `f32`, `bf16` or `f16`"))
    }

    /// The encoding of a matrix's rows, and the format in memory.
    pub fn of(self, part: &Part, stored: Dtype, inputs: u64) -> Result<(Dtype, &'static Format), Failed> {
        let dtype = self.dtype().unwrap_or(stored);
        if !stored.is_float() && !dtype.is_float() && dtype != stored {
            let (stored, dtype) = (stored.as_str(), dtype.as_str());
            let what =
                format!("tensor `{}` is {stored}, and would be rounded a second time as {dtype}", part.gguf);
            let failed = Failed::new(FailureKind::Unsupported, what);
            return Err(failed.hint("leave `dtype` out: the model is loaded as the file has it"));
        }
        if let Self::Format(format) = self
            && format.takes(inputs as usize)
        {
            return Ok((dtype, format));
        }
        // Rows that do not divide into blocks keep their format.
        let fits = inputs.is_multiple_of(dtype.block().0 as u64);
        let dtype = if fits { dtype } else { stored };
        // Blocks without kernels are widened to f16, which holds their numbers nearly exactly.
        Ok(Format::of(dtype).map_or((Dtype::F16, &F16), |format| (dtype, format)))
    }

    /// The rounding of embedding rows. For block formats it is `None`, because rows are looked up in the output matrix.
    pub fn of_embedding(self) -> Option<Dtype> {
        self.dtype().filter(|dtype| dtype.is_float())
    }

    fn dtype(self) -> Option<Dtype> {
        match self {
            Self::Own => None,
            Self::Format(format) => Some(format.dtype),
        }
    }
}
