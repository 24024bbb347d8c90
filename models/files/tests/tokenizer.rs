//! Tests synthesised and converted tokenizers: a conversion must not change the ids.
#![expect(clippy::unwrap_used, reason = "tests panic and print")]

mod gguf_file;
mod tiny;

use std::path::{Path, PathBuf};

use gguf_file::with_tokenizer;
use model_files::gguf::{ValueToWrite, read_header};
use model_files::tokenizer::{
    PreTokenizer, Special, TokenType, Tokenizer, TokenizerKind, TokenizerTables, from_gguf, from_json,
    synthesise,
};
use model_files::{ModelFolder, embedded};
use serde_json::{Value, json};
use tiny::{folder, model, write_json};

/// Texts that tokenizers treat differently.
const TEXTS: [&str; 24] = [
    "",
    " ",
    "   leading and trailing   ",
    "a  b   c    d",
    "\n",
    "\n\n\n x",
    " \n \n x\r\n\r\n",
    "\t\ttabs\t",
    "1234567890 12 3.14159 1,000,000",
    "٣٤٥ ½ Ⅷ ①",
    "😀 👩‍👩‍👧‍👦 🇩🇪 🏳️‍🌈",
    "héllo naïve Ünïcödé",
    "Здравствуй, мир!",
    "你好，世界。こんにちは",
    "مرحبا שלום नमस्ते ไทย 한국어",
    "don't I'm we'LL they'Re 'tis 's",
    "x'sx ''' \"'t\"",
    "a\u{a0}b\u{2003}c\u{3000}d\u{2028}e",
    "e\u{301} A\u{30a}",
    "zero\u{200b}width\u{feff}\0\u{1f}\u{7f}",
    "!!!???...---___***",
    "C++ a->b x<=y {[()]} ~`@#$%^&*",
    "snake_case camelCase SCREAMING mixed123abc456",
    "<0x0A> Ġ [PAD3] [EMPTY_1]",
];

fn gpt2() -> &'static PreTokenizer {
    PreTokenizer::named("gpt-2").unwrap()
}

/// Tables with `<unk>`, `<s>` and `</s>` first, and BOS before every text.
fn tables_of_size(vocabulary: u32) -> TokenizerTables {
    let specials = ["<unk>", "<s>", "</s>"].into_iter().zip(0..);
    let specials: Vec<Special> =
        specials.map(|(content, id)| Special { id, content: content.into() }).collect();
    let mut tables = synthesise(vocabulary, gpt2(), &specials).unwrap();
    (tables.bos, tables.eos, tables.add_bos) = (Some(1), Some(2), Some(1));
    tables
}

const SPACE_PREFIX: bool = true;

/// The tables of a SentencePiece-like BPE tokenizer: a few pieces of at most four letters, their scores, and byte fallback.
fn sentencepiece_tables(space_prefix: bool) -> TokenizerTables {
    let mut tokens = vec!["<unk>".to_string(), "<s>".into(), "</s>".into()];
    let mut types = vec![TokenType::Unknown, TokenType::Control, TokenType::Control];
    tokens.extend((0..256).map(|byte| format!("<0x{byte:02X}>")));
    types.resize(tokens.len(), TokenType::Byte);
    let merged = ["▁t", "he", "▁the", "▁a", "an", "▁an", "at", "▁that", "th", "▁▁", "hat"];
    tokens.extend(merged.into_iter().chain(["▁", "t", "h", "e", "a", "n", "é", "好"]).map(String::from));
    types.resize(tokens.len(), TokenType::Normal);
    let scores = (0..tokens.len()).map(|id| if id < 259 { 0.0 } else { 259.0 - id as f32 }).collect();
    TokenizerTables {
        kind: TokenizerKind::SentencePiece { space_prefix, scores },
        tokens,
        types,
        merges: Vec::new(),
        bos: Some(1),
        eos: Some(2),
        unknown: Some(0),
        padding: None,
        add_bos: Some(1),
        add_eos: None,
        chat_template: None,
    }
}

fn write_gguf(tables: &TokenizerTables, name: &str) -> PathBuf {
    let vocabulary = tables.tokens.len() as u32;
    with_tokenizer(&tables.to_gguf(vocabulary).unwrap(), vocabulary).write(&format!("tokenizer-{name}"))
}

fn read_back(path: &Path) -> anyhow::Result<TokenizerTables> {
    from_gguf(path, &read_header(path, 0)?)
}

fn assert_same_ids(left: &Tokenizer, right: &Tokenizer, text: &str) {
    for text in TEXTS.iter().copied().chain(text.lines()).chain([text]) {
        assert_eq!(left.encode(text).unwrap(), right.encode(text).unwrap(), "{text:?}");
    }
}

#[test]
fn a_synthesised_tokenizer_is_the_same_on_every_machine() {
    let digest = |tables: &TokenizerTables| {
        let merges = tables.merges.iter().map(|(left, right)| format!("{left} {right}"));
        paths::digest(tables.tokens.iter().cloned().chain(merges).collect::<Vec<_>>().join("\n").as_bytes())
    };
    // With another digest every synthesised model has another tokenizer, and the ids of its prompts change.
    assert_eq!(digest(&tables_of_size(2048)), "3b033538af0a73d2");
    assert_eq!(digest(&tables_of_size(32_000)), "ffc05a353265b30f");
}

#[test]
fn any_text_is_restored_from_its_ids() {
    let tokenizer = Tokenizer::from_tables(&tables_of_size(2048)).unwrap();
    let every_byte: String = ('\0'..='\u{7ff}').chain("\u{1f680}\u{10ffff}".chars()).collect();
    for text in TEXTS.into_iter().chain([every_byte.as_str()]) {
        let ids = tokenizer.encode(text).unwrap();
        assert_eq!(ids[0], 1);
        assert_eq!(tokenizer.decode(&ids), text);
    }
}

#[test]
fn the_text_of_each_token_encodes_to_its_id_alone() {
    let tables = tables_of_size(32_000);
    let tokenizer = Tokenizer::from_tables(&tables).unwrap();
    assert_eq!((tables.tokens.len(), tokenizer.vocabulary_size()), (32_000, 32_000));
    let mut partial_characters = 0;
    for id in 3..32_000 {
        let text = tokenizer.decode(&[id]);
        if text.contains(char::REPLACEMENT_CHARACTER) {
            partial_characters += 1;
            continue;
        }
        assert_eq!(tokenizer.encode(&text).unwrap(), [1, id], "{text:?}");
    }
    assert_eq!(partial_characters, 128, "the bytes beyond ASCII are parts of characters");
}

#[test]
fn special_tokens_keep_their_ids_and_others_get_the_remaining_ids() {
    let end = [Special { id: 1_024, content: "<|endoftext|>".into() }];
    let tables = synthesise(1_025, gpt2(), &end).unwrap();
    assert_eq!((tables.tokens[0].as_str(), tables.tokens[1_024].as_str()), ("!", "<|endoftext|>"));
    let added: Vec<_> = (0..1_025).filter(|id| tables.types[*id].is_added()).collect();
    assert_eq!(added, [1_024]);
    let tokenizer = Tokenizer::from_tables(&tables).unwrap();
    assert_eq!(tokenizer.encode("!<|endoftext|>").unwrap(), [0, 1_024], "no BOS by default");
    assert_eq!(synthesise(257, gpt2(), &end[..0]).unwrap().tokens.len(), 257);
}

#[test]
fn invalid_vocabularies_are_refused() {
    let special = |id, content: &str| Special { id, content: content.into() };
    let refused =
        |vocabulary, specials: &[Special]| synthesise(vocabulary, gpt2(), specials).unwrap_err().to_string();
    assert!(refused(258, &[special(0, "<a>"), special(1, "<b>"), special(2, "<c>")]).contains("need 259"));
    assert!(refused(300, &[special(300, "<a>")]).contains("`<a>` has id 300 in a vocabulary of 300"));
    assert!(refused(300, &[special(0, "<a>"), special(0, "<b>")]).contains("two special tokens have id 0"));
    assert!(refused(300, &[special(0, "<a>"), special(1, "<a>")]).contains("two special tokens are `<a>`"));
    assert!(refused(300, &[special(0, "e")]).contains("which ordinary text contains"));
    assert!(refused(u32::MAX, &[]).contains("is more than"));
}

#[test]
fn byte_level_ids_are_the_same_through_json_and_through_gguf() {
    let tables = tables_of_size(2048);
    let tokenizer = Tokenizer::from_tables(&tables).unwrap();
    let path = write_gguf(&tables, "byte-level");
    assert_eq!(read_back(&path).unwrap(), tables);
    let opened = ModelFolder::open(&path).unwrap();
    assert_same_ids(&opened.tokenizer().unwrap(), &tokenizer, &embedded::heldout_text().unwrap());
    let json = folder("byte-level").join("tokenizer.json");
    std::fs::write(&json, tables.to_json().unwrap()).unwrap();
    std::fs::write(json.with_file_name("tokenizer_config.json"), tables.to_config_json(Some(64)).unwrap())
        .unwrap();
    assert_eq!(from_json(&json).unwrap(), tables);
}

#[test]
fn a_pre_tokenizer_is_restored_from_tokenizer_json_and_from_gguf() {
    let mut tables = tables_of_size(600);
    let names = ["llama-bpe", "smaug-bpe", "qwen2", "qwen35", "starcoder", "tekken", "gpt-4o", "deepseek-v3"];
    for name in names.into_iter().chain(["deepseek-coder", "falcon", "default", "gpt-2"]) {
        let pre = PreTokenizer::named(name).unwrap();
        tables.kind = TokenizerKind::ByteLevel { pre, nfc: pre.nfc };
        let json = folder(&format!("pre-{name}")).join("tokenizer.json");
        std::fs::write(&json, tables.to_json().unwrap()).unwrap();
        assert_eq!(from_json(&json).unwrap().kind, tables.kind, "{name}");
        let restored = read_back(&write_gguf(&tables, name)).unwrap();
        assert_eq!(restored, tables, "{name}");
        assert_eq!(Tokenizer::from_tables(&restored).unwrap().encode("AB 12\n").unwrap()[0], 1, "{name}");
    }
}

#[test]
fn scores_become_merges_and_merges_become_scores() {
    for space_prefix in [true, false] {
        let name = format!("pieces-{space_prefix}");
        let read = read_back(&write_gguf(&sentencepiece_tables(space_prefix), &name)).unwrap();
        let tokenizer = Tokenizer::from_tables(&read).unwrap();
        let joined_tokens = |text: &str| {
            let ids = tokenizer.encode(text).unwrap();
            ids.iter().map(|&id| read.tokens[id as usize].as_str()).collect::<Vec<_>>().join("|")
        };
        let expected = if space_prefix { "<s>|▁the|▁an" } else { "<s>|t|he|▁an" };
        assert_eq!(joined_tokens("the an"), expected);
        // `▁t` has a better score than `hat`, and `at` a better one than `th`.
        assert_eq!(joined_tokens(" that").rsplit('|').next(), Some("▁that"));
        assert_eq!(joined_tokens(" é😀").split_once('é').unwrap().1, "|<0xF0>|<0x9F>|<0x98>|<0x80>");
        for text in TEXTS {
            assert_eq!(tokenizer.decode(&tokenizer.encode(text).unwrap()), text);
        }
        let json = folder(&name).join("tokenizer.json");
        std::fs::write(&json, read.to_json().unwrap()).unwrap();
        let ranked = from_json(&json).unwrap();
        assert_eq!(
            (&ranked.tokens, &ranked.types, &ranked.merges),
            (&read.tokens, &read.types, &read.merges)
        );
        let restored = read_back(&write_gguf(&ranked, &format!("{name}-again"))).unwrap();
        assert_eq!(restored.merges, read.merges, "the ranks of merges keep the order that the scores gave");
        assert_same_ids(
            &Tokenizer::from_tables(&restored).unwrap(),
            &tokenizer,
            &embedded::heldout_text().unwrap(),
        );
    }
}

#[test]
fn the_embedded_tokenizer_gives_the_same_ids_through_tables() {
    let opened = ModelFolder::open(embedded::folder().unwrap()).unwrap();
    let tables = opened.tokenizer_tables().unwrap();
    assert_eq!((tables.bos, tables.add_bos, tables.eos), (Some(0), Some(0), Some(1)));
    let text = embedded::heldout_text().unwrap();
    assert_same_ids(&Tokenizer::from_tables(&tables).unwrap(), &opened.tokenizer().unwrap(), &text);
    let through_gguf = read_back(&write_gguf(&tables, "embedded")).unwrap();
    assert_eq!(through_gguf, tables);
}

#[test]
fn ids_without_a_token_have_a_name_in_gguf_but_are_not_in_the_tokenizer() {
    let tables = tables_of_size(600);
    let path = with_tokenizer(&tables.to_gguf(640).unwrap(), 640).write("tokenizer-padded");
    let padded = read_back(&path).unwrap();
    assert_eq!((padded.tokens[639].as_str(), padded.types[639]), ("[PAD639]", TokenType::Unused));
    let tokenizer = ModelFolder::open(&path).unwrap().tokenizer().unwrap();
    assert_eq!(tokenizer.vocabulary_size(), 600);
    assert_same_ids(&tokenizer, &Tokenizer::from_tables(&tables).unwrap(), "");
    assert!(tables.to_gguf(599).unwrap_err().to_string().contains("has 600 tokens, the model 599"));
}

#[test]
fn a_tokenizer_json_takes_precedence_over_the_tables_of_a_gguf() {
    let path = write_gguf(&tables_of_size(600), "beside");
    write_json(&path.with_file_name("tokenizer.json"), &tiny::tokenizer());
    let opened = ModelFolder::open(&path).unwrap();
    assert_eq!(opened.tokenizer().unwrap().encode("w3 w4").unwrap(), [3, 4]);
    assert!(opened.tokenizer_facts().unwrap().unwrap().source.ends_with("tokenizer.json"));
}

#[test]
fn a_tokenizer_with_ids_beyond_the_vocabulary_is_refused() {
    let path = model("other-vocabulary");
    let mut config = tiny::config();
    config["vocab_size"] = json!(tiny::VOCABULARY - 2);
    write_json(&path.join("config.json"), &config);
    let refused = format!("{:#}", ModelFolder::open(&path).unwrap().tokenizer().unwrap_err());
    let expected = "tokenizer.json`: the tokenizer has another vocabulary than the model: `w63`, one of its 64 tokens, \
                has id 63, but the model has 62 tokens";
    assert!(refused.contains(expected), "{refused}");
    config["vocab_size"] = json!(tiny::VOCABULARY + 64);
    write_json(&path.join("config.json"), &config);
    ModelFolder::open(&path).unwrap().tokenizer().unwrap();
}

#[test]
fn the_facts_about_a_tokenizer_are_read_from_its_files() {
    let embedded = ModelFolder::open(embedded::folder().unwrap()).unwrap();
    let facts = embedded.tokenizer_facts().unwrap().unwrap();
    let entries = u64::from(embedded.config.vocabulary_size);
    assert_eq!((facts.kind.as_str(), facts.entries, facts.chat_template), ("byte-level BPE", entries, false));

    let mut tables = sentencepiece_tables(SPACE_PREFIX);
    tables.chat_template = Some("{{ messages }}".into());
    let path = write_gguf(&tables, "facts");
    let in_gguf = ModelFolder::open(&path).unwrap().tokenizer_facts().unwrap().unwrap();
    assert_eq!((in_gguf.kind.as_str(), in_gguf.entries), ("SentencePiece-like BPE", 278));
    assert!(in_gguf.chat_template && in_gguf.source.ends_with("x.gguf"));
    assert_eq!(read_back(&path).unwrap().chat_template, tables.chat_template);

    let path = model("facts");
    let facts = |tokenizer: &Value| {
        write_json(&path.join("tokenizer.json"), tokenizer);
        ModelFolder::open(&path).unwrap().tokenizer_facts()
    };
    assert_eq!(facts(&tiny::tokenizer()).unwrap().unwrap().kind, "WordLevel");
    let unigram = json!({"added_tokens": [{"id": 1}, {"id": 2}],
                         "model": {"type": "Unigram", "vocab": [["a", -1.5], ["b", 0.0]]}});
    let unigram_facts = facts(&unigram).unwrap().unwrap();
    assert_eq!(
        (unigram_facts.kind.as_str(), unigram_facts.entries, unigram_facts.chat_template),
        ("Unigram", 3, false)
    );
    write_json(&path.join("tokenizer_config.json"), &json!({"chat_template": "{{ messages }}"}));
    assert!(facts(&unigram).unwrap().unwrap().chat_template);
    let broken = format!("{:#}", facts(&json!({"model": {"vocab": {"a": -1}}})).unwrap_err());
    assert!(broken.contains("tokenizer.json`: invalid value"), "{broken}");
    std::fs::remove_file(path.join("tokenizer.json")).unwrap();
    assert_eq!(ModelFolder::open(&path).unwrap().tokenizer_facts().unwrap(), None);
}

#[test]
fn an_error_about_a_step_that_llama_cpp_does_not_support_names_the_step() {
    let good: Value = serde_json::from_str(&tables_of_size(300).to_json().unwrap()).unwrap();
    let pieces: Value = serde_json::from_str(&sentencepiece_tables(SPACE_PREFIX).to_json().unwrap()).unwrap();
    let path = folder("refused").join("tokenizer.json");
    let refused = |file: &Value, pointer: &str, value: Value| {
        let mut file = file.clone();
        *file.pointer_mut(pointer).unwrap() = value;
        write_json(&path, &file);
        let refused = format!("{:#}", from_json(&path).unwrap_err());
        assert!(refused.contains("tokenizer.json"), "{refused}");
        refused
    };
    let unigram = json!({"type": "Unigram", "vocab": [["a", 0.0]]});
    let expected = "the tokenizer is Unigram; the GGUF would have no tokenizer that llama.cpp could use";
    assert!(refused(&good, "/model", unigram).contains(expected));
    let word_piece = json!({"type": "WordPiece", "vocab": {"a": 0}});
    assert!(refused(&good, "/model", word_piece).contains("the tokenizer is WordPiece"));
    let split = json!({"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": "x+"}, "behavior": "Isolated", "invert": false},
        {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]});
    let unknown = refused(&good, "/pre_tokenizer", split);
    assert!(unknown.contains("unknown pre-tokenizer: words are split by [\"x+\"]"), "{unknown}");
    let prefixed = json!({"type": "ByteLevel", "add_prefix_space": true, "use_regex": true});
    assert!(refused(&good, "/pre_tokenizer", prefixed).contains("`pre_tokenizer` is {\"add_prefix_space\""));
    assert!(refused(&good, "/model/ignore_merges", json!(true)).contains("`ignore_merges` set"));
    assert!(
        refused(&good, "/normalizer", json!({"type": "Lowercase"})).contains("`normalizer` is {\"type\"")
    );
    let bert = json!({"type": "BertProcessing", "sep": ["</s>", 2], "cls": ["<s>", 1]});
    assert!(refused(&good, "/post_processor", bert).contains("`post_processor` is {"));
    assert!(
        refused(&good, "/model/end_of_word_suffix", json!("</w>")).contains("adds `</w>` to parts of words")
    );
    assert!(refused(&good, "/model/merges/0", json!(["h", "nothing"])).contains("merge 0 names `hnothing`"));
    assert!(refused(&good, "/model/merges/0", json!("he")).contains("merge 0: expected a pair of texts"));
    assert!(refused(&good, "/model/vocab/<s>", json!(7)).contains("id 7 is both"));
    assert!(refused(&good, "/model/vocab/he", json!(u32::MAX)).contains("an id is 4294967295, too high"));
    assert!(refused(&pieces, "/normalizer", Value::Null).contains("spaces are not replaced by"));
    let metaspace =
        json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": true});
    assert!(refused(&pieces, "/pre_tokenizer", metaspace).contains("`pre_tokenizer` is {"));
}

#[test]
fn newer_and_older_forms_of_tokenizer_json_give_the_same_tables() {
    let tables = sentencepiece_tables(SPACE_PREFIX);
    let mut file: Value = serde_json::from_str(&tables.to_json().unwrap()).unwrap();
    let path = folder("forms").join("tokenizer.json");
    write_json(&path, &file);
    let expected = from_json(&path).unwrap();
    file["normalizer"] = Value::Null;
    file["pre_tokenizer"] =
        json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": false});
    write_json(&path, &file);
    assert_eq!(from_json(&path).unwrap(), expected);

    let mut file: Value = serde_json::from_str(&tables_of_size(300).to_json().unwrap()).unwrap();
    write_json(&path, &file);
    let expected = from_json(&path).unwrap();
    for merge in file["model"]["merges"].as_array_mut().unwrap() {
        *merge = json!(format!("{} {}", merge[0].as_str().unwrap(), merge[1].as_str().unwrap()));
    }
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false});
    file["post_processor"] = json!({"type": "Sequence", "processors": [byte_level, file["post_processor"]]});
    write_json(&path, &file);
    assert_eq!(from_json(&path).unwrap(), expected);
}

#[test]
fn an_error_about_broken_tables_in_a_gguf_names_the_file_and_the_key() {
    let refused = |tables: &TokenizerTables, key: &str, value: Option<ValueToWrite>| {
        let vocabulary = tables.tokens.len() as u32;
        let mut entries = tables.to_gguf(vocabulary).unwrap();
        entries.retain(|(name, _)| name != key);
        entries.extend(value.map(|value| (key.to_string(), value)));
        let path = with_tokenizer(&entries, vocabulary).write("tokenizer-broken");
        let refused = format!("{:#}", read_back(&path).unwrap_err());
        assert!(refused.contains("x.gguf`") && refused.contains(key), "{key}: {refused}");
        refused
    };
    let (bytes, pieces) = (tables_of_size(300), sentencepiece_tables(SPACE_PREFIX));
    let text = |text: &str| Some(ValueToWrite::Text(text.into()));
    let merges = |merge: &str| Some(ValueToWrite::Texts(vec![merge.into()]));
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    let pre = refused(&bytes, &key("pre"), text("unknown's"));
    assert!(pre.contains("unknown pre-tokenizer `unknown\\'s`"), "{pre}");
    assert!(refused(&bytes, &key("model"), text("bert")).contains("is `bert`"));
    assert!(refused(&bytes, &key("model"), None).contains("is missing"));
    assert!(refused(&bytes, &key("merges"), None).contains("is missing"));
    assert!(refused(&bytes, &key("merges"), merges("h nothing")).contains("merge 0 names `hnothing`"));
    assert!(refused(&bytes, &key("merges"), merges("he")).contains("merge 0: expected a pair of texts"));
    assert!(refused(&bytes, &key("bos_token_id"), Some(ValueToWrite::U32(300))).contains("300 tokens"));
    assert!(refused(&bytes, &key("eos_token_id"), Some(ValueToWrite::I32(-1))).contains("300 tokens"));
    assert!(refused(&bytes, &key("bos_token_id"), None).contains("is missing"));
    assert!(refused(&bytes, &key("add_bos_token"), text("yes")).contains("expected true or false"));
    let types = Some(ValueToWrite::I32s(vec![1; 299]));
    assert!(refused(&bytes, &key("token_type"), types).contains("has 299 entries"));
    let tokens = |tokens: &[String]| Some(ValueToWrite::Texts(tokens.to_vec()));
    let short = refused(&bytes, &key("tokens"), tokens(&bytes.tokens[..299]));
    assert!(short.contains("has 299 entries, tensor `token_embd.weight` 300 rows"), "{short}");
    let twice: Vec<String> = bytes.tokens.iter().map(|token| token.replace('b', "a")).collect();
    assert!(refused(&bytes, &key("tokens"), tokens(&twice)).contains("token `a` has the ids"));
    let scores = Some(ValueToWrite::F32s(vec![0.0; 5]));
    assert!(refused(&pieces, &key("scores"), scores).contains("has 5 entries, `tokenizer.ggml.tokens` 278"));
    let mut long = pieces.clone();
    long.tokens[270] = "x".repeat(5000);
    assert!(refused(&long, "", None).contains("token 270 is 5000 bytes long"));
}

#[test]
fn a_changed_byte_of_a_gguf_file_does_not_panic() {
    for (tables, name) in
        [(tables_of_size(300), "changed-bytes"), (sentencepiece_tables(SPACE_PREFIX), "changed-pieces")]
    {
        let path = write_gguf(&tables, name);
        let good = std::fs::read(&path).unwrap();
        let (mut accepted, mut refused) = (0, 0);
        for offset in (0..good.len()).step_by(23) {
            let mut changed = good.clone();
            changed[offset] ^= 0x81;
            std::fs::write(&path, &changed).unwrap();
            let opened = ModelFolder::open(&path).and_then(|folder| folder.tokenizer());
            match opened.and_then(|tokenizer| tokenizer.encode("the an\n é😀")) {
                Ok(_) => accepted += 1,
                Err(_) => refused += 1,
            }
        }
        assert!(accepted > 0 && refused > 0, "{name}: {accepted} accepted, {refused} refused");
    }
}
