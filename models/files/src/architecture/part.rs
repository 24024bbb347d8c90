//! One tensor of a network in both formats: Hugging Face's name and order, GGUF's name and order.

/// A tensor of an architecture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// The name in safetensors of the Hugging Face hub.
    pub name: String,
    /// The name in GGUF.
    pub gguf: String,
    /// The shape in safetensors, outermost dimension first.
    pub shape: Vec<u64>,
    pub kind: Kind,
    pub place: Place,
    pub order: Order,
    /// The number of inputs to each output number.
    pub fan_in: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Matrix,
    Bias,
    Norm,
    NormBias,
}

/// The place of a part in the network; reports give sizes by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    Embedding,
    Positions,
    Attention,
    FeedForward,
    Norms,
    Output,
}

impl Place {
    pub const ALL: [Self; 6] =
        [Self::Embedding, Self::Positions, Self::Attention, Self::FeedForward, Self::Norms, Self::Output];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Embedding => "embedding",
            Self::Positions => "positions",
            Self::Attention => "attention",
            Self::FeedForward => "feed-forward",
            Self::Norms => "norms",
            Self::Output => "output",
        }
    }
}

/// The difference in content between GGUF's tensor and Hugging Face's. Only `PlusOne` changes values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    Same,
    /// Rotary embeddings rotate pairs of rows. Hugging Face stores the two halves of a head in sequence; GGUF stores the
    /// two rows of each pair side by side.
    Pairs {
        heads: u64,
    },
    /// GPT-2 stores its matrices as inputs by outputs; GGUF stores all as outputs by inputs.
    Transposed,
    /// Gemma's norms multiply by the stored value plus one; GGUF stores the sum.
    PlusOne,
}

/// The format that defines names and order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    HuggingFace,
    Gguf,
}

impl Part {
    pub fn elements(&self) -> u64 {
        self.shape.iter().product()
    }

    pub fn name_in(&self, layout: Layout) -> &str {
        match layout {
            Layout::HuggingFace => &self.name,
            Layout::Gguf => &self.gguf,
        }
    }

    /// The shape in this layout.
    pub fn shape_in(&self, layout: Layout) -> Vec<u64> {
        let mut shape = self.shape.clone();
        if layout == Layout::Gguf && self.order == Order::Transposed {
            shape.reverse();
        }
        shape
    }

    /// The number and length of rows in this layout. A vector is one row.
    pub fn rows_in(&self, layout: Layout) -> (u64, u64) {
        match self.shape_in(layout).as_slice() {
            [rows, columns] => (*rows, *columns),
            // No supported architecture has tensors of another rank.
            other => (1, other.iter().product()),
        }
    }

    /// Whether GGUF stores the part in f32 only: ggml adds norms, biases and learned positions in f32.
    pub fn is_f32_in_gguf(&self) -> bool {
        self.kind != Kind::Matrix || self.place == Place::Positions
    }

    /// The index of row `row` in the other layout. Only for orders that keep rows whole.
    pub fn row_in_other_layout(&self, row: u64, from: Layout) -> u64 {
        let Order::Pairs { heads } = self.order else { return row };
        let head_rows = self.shape[0] / heads;
        let (head, within, half) = (row / head_rows, row % head_rows, head_rows / 2);
        let moved = match from {
            Layout::HuggingFace => within % half * 2 + within / half,
            Layout::Gguf => within % 2 * half + within / 2,
        };
        head * head_rows + moved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_a_head_go_from_halves_to_pairs_and_back() {
        let part = Part {
            name: String::new(),
            gguf: String::new(),
            shape: vec![12, 1],
            kind: Kind::Matrix,
            place: Place::Attention,
            order: Order::Pairs { heads: 2 },
            fan_in: 1,
        };
        let in_gguf: Vec<_> = (0..6).map(|row| part.row_in_other_layout(row, Layout::HuggingFace)).collect();
        assert_eq!(in_gguf, [0, 2, 4, 1, 3, 5]);
        for row in 0..12 {
            let there = part.row_in_other_layout(row, Layout::HuggingFace);
            assert_eq!(part.row_in_other_layout(there, Layout::Gguf), row);
        }
    }
}
