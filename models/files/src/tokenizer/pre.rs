//! The pre-tokenizers of model families, by GGUF's names: regular expressions that cut a text into words before bytes are
//! merged.
//!
//! The expressions are those of each model's `tokenizer.json`. llama.cpp rewrites some for its own engine; the names are
//! those of its loader.

/// One pre-tokenizer. Each expression cuts the words of the one before it; matches and gaps both become words.
#[derive(Debug, PartialEq, Eq)]
pub struct Pre {
    /// Values of `tokenizer.ggml.pre`; the first is the one to write.
    pub names: &'static [&'static str],
    pub splits: &'static [&'static str],
    /// Whether a word that is a token skips the merging of bytes.
    pub ignore_merges: bool,
    /// llama.cpp's default for a file without the field.
    pub adds_bos: bool,
    /// Whether the family's own tokenizers first compose characters (NFC).
    pub nfc: bool,
}

impl Pre {
    pub fn named(name: &str) -> Option<&'static Self> {
        ALL.iter().find(|pre| pre.names.contains(&name))
    }

    pub(super) fn splitting(splits: &[String], ignore_merges: bool) -> Option<&'static Self> {
        ALL.iter().find(|pre| pre.splits == splits && pre.ignore_merges == ignore_merges)
    }

    pub fn name(&self) -> &'static str {
        self.names[0]
    }
}

/// The expression of `ByteLevel` with `use_regex`.
pub(super) const GPT2_SPLIT: &str =
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// The expression of `Digits` with `individual_digits`.
pub(super) const EACH_NUMBER: &str = r"\p{N}";

const LLAMA3_SPLIT: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2_SPLIT: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN35_SPLIT: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN_SPLIT: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT4O_SPLIT: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const DEEPSEEK3_SPLIT: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;

const fn pre(names: &'static [&'static str], splits: &'static [&'static str]) -> Pre {
    Pre { names, splits, ignore_merges: false, adds_bos: false, nfc: false }
}

static ALL: [Pre; 13] = [
    pre(
        &[
            "gpt-2",
            "phi-2",
            "jina-es",
            "jina-de",
            "jina-v2-es",
            "jina-v2-de",
            "gigachat",
            "a.x-4.0",
            "mellum",
            "modern-bert",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "granite-docling",
            "exaone4",
        ],
        &[GPT2_SPLIT],
    ),
    Pre {
        ignore_merges: true,
        adds_bos: true,
        ..pre(
            &[
                "llama-bpe",
                "llama3",
                "llama-v3",
                "falcon3",
                "falcon-h1",
                "pixtral",
                "midm-2.0",
                "lfm2",
                "jina-v5-nano",
            ],
            &[LLAMA3_SPLIT],
        )
    },
    // These have llama 3's words, but merge every word from its bytes.
    pre(&["smaug-bpe", "dbrx", "glm4", "chatglm-bpe"], &[LLAMA3_SPLIT]),
    Pre { nfc: true, ..pre(&["qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez"], &[QWEN2_SPLIT]) },
    pre(&["stablelm2", "hunyuan", "solar-open", "grok-2"], &[QWEN2_SPLIT]),
    Pre { nfc: true, ..pre(&["qwen35"], &[QWEN35_SPLIT]) },
    pre(
        &["starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b", "mellum2"],
        &[EACH_NUMBER, GPT2_SPLIT],
    ),
    Pre { ignore_merges: true, adds_bos: true, ..pre(&["tekken"], &[TEKKEN_SPLIT]) },
    pre(&["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"], &[GPT4O_SPLIT]),
    pre(
        &["deepseek-v3", "hunyuan-dense", "joyai-llm"],
        &[r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", DEEPSEEK3_SPLIT],
    ),
    pre(&["deepseek-coder"], &[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", EACH_NUMBER]),
    pre(&["falcon"], &[r"[\p{P}\$\+<=>\^~\|`]+", GPT2_SPLIT, "[0-9][0-9][0-9]"]),
    // llama.cpp's fallback for a file that names none.
    pre(&["default"], &[r"[\p{P}\$\+<=>\^~\|]+", GPT2_SPLIT, r"\p{N}+", "[0-9][0-9][0-9]"]),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_means_one_way_of_cutting() {
        let mut names: Vec<_> = ALL.iter().flat_map(|pre| pre.names).collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
        assert_eq!(Pre::named("llama3").map(Pre::name), Some("llama-bpe"));
        assert_eq!(Pre::splitting(&[GPT2_SPLIT.to_string()], false).map(Pre::name), Some("gpt-2"));
        assert_eq!(Pre::splitting(&[GPT2_SPLIT.to_string()], true), None);
    }
}
