package synth

// This file encodes what precedes the weights in a GGUF v3 file: the metadata with the vocabulary,
// and the tensor table. All integers are little-endian. A string is its length as uint64, followed
// by its bytes.

import (
	"encoding/binary"
	"fmt"
	"math"

	"tensorcast/gguf"
)

const (
	ggufMagic   = "GGUF"
	ggufVersion = 3
	alignment   = 32 // alignment of the tensors' offsets; the usual value
)

// Value types of GGUF metadata (enum gguf_type).
const (
	kvUint32  = 4
	kvInt32   = 5
	kvFloat32 = 6
	kvBool    = 7
	kvString  = 8
	kvArray   = 9
)

// Kinds of tokens (enum llama_token_type).
const (
	tokenNormal  = 1
	tokenUnknown = 2
	tokenControl = 3
	tokenDefined = 4 // its text is found before anything else in a prompt is split
	tokenByte    = 6
)

// Token ids. Byte b has the token firstByte+b.
const (
	tokenUnk  = 0
	tokenBOS  = 1
	tokenEOS  = 2
	firstByte = 3
)

// spaceMark is how SentencePiece represents a space.
const spaceMark = "\u2581"

// fileType is general.file_type (enum llama_ftype) of a model with weights of type t, or -1 if
// synth does not write t. For Q4_K it is Q4_K_S, which is llama.cpp's closest name for a model that
// is Q4_K throughout.
func fileType(t gguf.Type) int {
	switch t {
	case gguf.F32:
		return 0
	case gguf.F16:
		return 1
	case gguf.Q4_0:
		return 2
	case gguf.Q8_0:
		return 7
	case gguf.Q4_K:
		return 14
	case gguf.TQ1_0:
		return 36
	case gguf.TQ2_0:
		return 37
	case gguf.Q1_0:
		return 40
	case gguf.Q2_0:
		return 41
	}
	return -1
}

// encoder appends GGUF values to buf and counts the key-value pairs.
type encoder struct {
	buf []byte
	kvs uint64
}

func (e *encoder) u32(v uint32) { e.buf = binary.LittleEndian.AppendUint32(e.buf, v) }
func (e *encoder) u64(v uint64) { e.buf = binary.LittleEndian.AppendUint64(e.buf, v) }
func (e *encoder) str(s string) {
	e.u64(uint64(len(s)))
	e.buf = append(e.buf, s...)
}

func (e *encoder) key(name string, valueType uint32) {
	e.kvs++
	e.str(name)
	e.u32(valueType)
}

func (e *encoder) kvU32(name string, v int) {
	e.key(name, kvUint32)
	e.u32(uint32(v))
}

func (e *encoder) kvF32(name string, v float32) {
	e.key(name, kvFloat32)
	e.u32(math.Float32bits(v))
}

func (e *encoder) kvStr(name, v string) {
	e.key(name, kvString)
	e.str(v)
}

func (e *encoder) kvBool(name string, v bool) {
	e.key(name, kvBool)
	e.bool(v)
}

func (e *encoder) bool(v bool) {
	b := byte(0)
	if v {
		b = 1
	}
	e.buf = append(e.buf, b)
}

func (e *encoder) kvArray(name string, elemType uint32, n int) {
	e.key(name, kvArray)
	e.u32(elemType)
	e.u64(uint64(n))
}

// token returns the text, the score and the kind of a token.
//
// The first 259 are those of a SentencePiece model with byte fallback. The space is not the byte
// token <0x20> but U+2581, as in SentencePiece, because the tokenizer replaces spaces first. So a
// prompt is split into single bytes.
//
// Further tokens (with a larger Vocab) are distinct words, each preceded by a space. They have at
// least two letters. There are no tokens of a space and one letter, so the tokenizer never merges
// bytes into the words: they appear only in the model's output. With Config.Routes the first of them are
// the trace's tokens, which a prompt may have, too. With a table they begin with words of one letter. Then a
// prompt's words are split into them, and so into tokens from all over the table.
func (c Config) token(id int) (text string, score float32, kind uint32) {
	switch {
	case id == tokenUnk:
		return "<unk>", 0, tokenUnknown
	case id == tokenBOS:
		return "<s>", 0, tokenControl
	case id == tokenEOS:
		return "</s>", 0, tokenControl
	case id == firstByte+' ':
		return spaceMark, 0, tokenNormal
	case id < ByteVocab:
		return fmt.Sprintf("<0x%02X>", id-firstByte), 0, tokenByte
	}
	if c.Routes != nil && id < ByteVocab+len(c.Routes.Tokens) {
		return TokenText(id - ByteVocab), 0, tokenDefined
	}
	first := 27 // in bijective base 26 this is the first number with two digits
	if graphs[c.Arch].table {
		first = 1
	}
	var word []byte
	for n := id - ByteVocab + first; n > 0; n = (n - 1) / 26 {
		word = append(word, byte('a'+(n-1)%26))
	}
	return spaceMark + string(word), -float32(id), tokenNormal // later words have lower scores, as in real vocabularies
}

// header encodes everything before the first tensor's bytes, including padding. cfg must have its
// defaults filled in; the tensors' offsets are relative to the end of the header, as in the file.
func header(cfg Config, tensors []Tensor) []byte {
	var e encoder
	e.kvStr("general.architecture", cfg.Arch)
	g, own := graphs[cfg.Arch], cfg.Arch+"."
	kvHeads, rotated := cfg.KVHeads, cfg.Embd/cfg.Heads
	if g.oneKV {
		kvHeads = 1
	}
	if g.ropeHalf {
		rotated /= 2
	}
	e.kvStr("general.type", "model")
	e.kvStr("general.name", fmt.Sprintf("synth %dx%d %v seed %d", cfg.Layers, cfg.Embd, cfg.Type, cfg.Seed))
	e.kvU32("general.alignment", alignment)
	e.kvU32("general.file_type", fileType(cfg.Type))
	e.kvU32("general.quantization_version", 2)
	e.kvU32(own+"vocab_size", cfg.Vocab)
	e.kvU32(own+"context_length", cfg.Ctx)
	e.kvU32(own+"embedding_length", cfg.Embd)
	e.kvU32(own+"block_count", cfg.Layers)
	e.kvU32(own+"feed_forward_length", cfg.FF)
	e.kvU32(own+"rope.dimension_count", rotated)
	e.kvF32(own+"rope.freq_base", 10000)
	e.kvU32(own+"attention.head_count", cfg.Heads)
	e.kvU32(own+"attention.head_count_kv", kvHeads)
	e.kvF32(own+"attention.layer_norm_rms_epsilon", 1e-5)
	if cfg.Experts > 0 {
		e.kvU32(own+"expert_count", cfg.Experts)
		e.kvU32(own+"expert_used_count", cfg.Used)
	}
	if cfg.Groups > 0 {
		e.kvU32(own+"expert_group_count", cfg.Groups)
		e.kvU32(own+"expert_group_used_count", cfg.GroupsUsed)
	}
	if g.metadata != nil {
		g.metadata(&e, cfg)
	}
	e.kvStr("tokenizer.ggml.model", "llama")
	e.kvArray("tokenizer.ggml.tokens", kvString, cfg.Vocab)
	for id := range cfg.Vocab {
		text, _, _ := cfg.token(id)
		e.str(text)
	}
	e.kvArray("tokenizer.ggml.scores", kvFloat32, cfg.Vocab)
	for id := range cfg.Vocab {
		_, score, _ := cfg.token(id)
		e.u32(math.Float32bits(score))
	}
	e.kvArray("tokenizer.ggml.token_type", kvInt32, cfg.Vocab)
	for id := range cfg.Vocab {
		_, _, kind := cfg.token(id)
		e.u32(kind)
	}
	e.kvU32("tokenizer.ggml.bos_token_id", tokenBOS)
	e.kvU32("tokenizer.ggml.eos_token_id", tokenEOS)
	e.kvU32("tokenizer.ggml.unknown_token_id", tokenUnk)
	e.kvBool("tokenizer.ggml.add_bos_token", true)
	e.kvBool("tokenizer.ggml.add_eos_token", false)
	e.kvBool("tokenizer.ggml.add_space_prefix", false)

	h := encoder{buf: []byte(ggufMagic)}
	h.u32(ggufVersion)
	h.u64(uint64(len(tensors)))
	h.u64(e.kvs)
	h.buf = append(h.buf, e.buf...)
	for _, t := range tensors {
		h.str(t.Name)
		h.u32(uint32(len(t.Shape)))
		for _, n := range t.Shape {
			h.u64(uint64(n))
		}
		h.u32(uint32(t.Type))
		h.u64(uint64(t.Offset))
	}
	return append(h.buf, make([]byte, align(int64(len(h.buf)))-int64(len(h.buf)))...)
}

// align rounds n up to the alignment.
func align(n int64) int64 { return (n + alignment - 1) / alignment * alignment }
