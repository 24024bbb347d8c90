//! One tensor of a network, as both worlds know it: Hugging Face's name and order, GGUF's name and order.

/// A tensor that an architecture consists of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// As safetensors of the Hugging Face hub name it.
    pub name: String,
    /// As GGUF names it.
    pub gguf: String,
    /// As safetensors hold it, outermost dimension first.
    pub shape: Vec<u64>,
    pub kind: Kind,
    pub place: Place,
    pub order: Order,
    /// How many numbers flow into each one that it makes.
    pub fan_in: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Matrix,
    Bias,
    Norm,
    NormBias,
}

/// Where in the network a part stands; sizes are told by it.
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

/// How the content of GGUF's tensor differs from that of Hugging Face's. The values are the same but for `PlusOne`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    Same,
    /// Rotary embeddings turn pairs of rows: Hugging Face has the two halves of a head one after the other, GGUF has the
    /// two of each pair side by side.
    Pairs {
        heads: u64,
    },
    /// GPT-2 keeps its matrices as inputs by outputs, GGUF all of them as outputs by inputs.
    Transposed,
    /// Gemma's norms multiply by one more than what is stored; GGUF stores the sum.
    PlusOne,
}

/// Whose names and whose order.
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

    /// The shape as this layout has it.
    pub fn shape_in(&self, layout: Layout) -> Vec<u64> {
        let mut shape = self.shape.clone();
        if layout == Layout::Gguf && self.order == Order::Transposed {
            shape.reverse();
        }
        shape
    }

    /// Rows and their length, as this layout has them. A vector is one row.
    pub fn rows_in(&self, layout: Layout) -> (u64, u64) {
        match self.shape_in(layout).as_slice() {
            [rows, columns] => (*rows, *columns),
            // No architecture here has another rank.
            other => (1, other.iter().product()),
        }
    }

    /// ggml adds norms, biases and learned positions in f32 and has them in a file only so.
    pub fn is_f32_in_gguf(&self) -> bool {
        self.kind != Kind::Matrix || self.place == Place::Positions
    }

    /// Where row `row` of one layout stands in the other. Only for orders that keep rows whole.
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
