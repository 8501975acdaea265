package llama_test

// This file tests the predictions for a text: that they are for the right tokens, and after the right context.

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"tensorcast/experiments/llama"
	"tensorcast/experiments/llama/llamatest"
)

const logitsText = "It was the best of times, it was the worst of times, it was the age of wisdom.\nIt was the " +
	"age of foolishness!\n"

// textTokens are the tokens that the synthetic models' vocabulary makes of a text: BOS, and a token
// for each byte.
func textTokens(text string) []int32 {
	tokens := []int32{1}
	for _, b := range []byte(strings.TrimSuffix(text, "\n")) {
		tokens = append(tokens, int32(b)+3)
	}
	return tokens
}

func writeText(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func argmax(v []float32) int32 {
	best := 0
	for i := range v {
		if v[i] > v[best] {
			best = i
		}
	}
	return int32(best)
}

func TestLogits(t *testing.T) {
	in := llamatest.ForTest(t)
	model := llamatest.Model(t, dense)
	const ctx = 16
	o := llama.Options{Model: model, TextFile: writeText(t, logitsText),
		Logits: filepath.Join(t.TempDir(), "logits"), Context: ctx, Threads: 1, Warmup: "none"}
	r := run(t, in, o)
	tokens := textTokens(logitsText)
	if r.PromptTokens != len(tokens) {
		t.Fatalf("the text has %d tokens, want %d", r.PromptTokens, len(tokens))
	}
	raw, err := os.ReadFile(o.Logits)
	if err != nil {
		t.Fatal(err)
	}
	l, err := llama.NewLogits(bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	if want := (llama.LogitsHeader{Vocab: 259, Context: ctx, Chunks: len(tokens) / ctx,
		Scored: ctx/2 - 1}); l.LogitsHeader != want || want.Chunks != 6 {
		t.Fatalf("%+v, want %+v", l.LogitsHeader, want)
	}
	for k := range l.Chunks {
		for i := ctx / 2; i < ctx-1; i++ {
			target, logits, err := l.Next()
			if err != nil {
				t.Fatal(err)
			}
			if want := tokens[k*ctx+i+1]; target != want || len(logits) != 259 {
				t.Fatalf("chunk %d, position %d: token %d, want %d; %d logits", k, i, target, want, len(logits))
			}
			if i%3 != k%3 {
				continue // enough runs of the driver
			}
			// The driver says the same when the context is given as a prompt. A later chunk has BOS
			// in place of its first token.
			g := run(t, in, llama.Options{Model: model, Prompt: logitsText[k*ctx : k*ctx+i], Tokens: 1, Threads: 1,
				Warmup: "none"})
			if got := argmax(logits); got != g.Tokens[0] {
				t.Errorf("chunk %d, position %d: predicts %d, want %d as after the same prompt", k, i, got, g.Tokens[0])
			}
		}
	}
	if _, _, err := l.Next(); err != io.EOF {
		t.Errorf("after the last prediction: %v, want io.EOF", err)
	}

	// A pipe gets the same as a file, and with fewer chunks it gets the first ones.
	o.Chunks = 2
	file, err := llama.NewLogits(bytes.NewReader(raw))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	score := func(l *llama.Logits) error {
		for ; ; n++ {
			token, logits, err := l.Next()
			if err == io.EOF {
				return nil
			}
			wantToken, want, fileErr := file.Next()
			if err := errors.Join(err, fileErr); err != nil {
				return err
			}
			if token != wantToken || !slices.Equal(logits, want) {
				return errors.New("the pipe and the file differ")
			}
		}
	}
	if r, err := in.Score(t.Context(), o, score); err != nil || n != 2*l.Scored || r.PromptTokens != len(tokens) {
		t.Errorf("%d predictions through a pipe, want %d; %+v, %v", n, 2*l.Scored, r, err)
	}
}

func TestScoreFails(t *testing.T) {
	in := llamatest.ForTest(t)
	ours := errors.New("ours")
	ctx, cancel := context.WithCancelCause(t.Context())
	o := llama.Options{Model: llamatest.Model(t, dense), TextFile: writeText(t, strings.Repeat(logitsText, 20)),
		Context: 16, Threads: 1, Warmup: "none"}
	var run *llama.RunError
	// reads one prediction; there are far more than a pipe holds
	first := func(l *llama.Logits) error {
		_, _, err := l.Next()
		return err
	}
	if _, err := in.Score(t.Context(), o,
		func(l *llama.Logits) error { return errors.Join(first(l), ours) }); !errors.Is(err, ours) {
		t.Errorf("a reader that fails: %v, want its error", err)
	}
	if _, err := in.Score(t.Context(), o,
		func(l *llama.Logits) error { return io.ErrUnexpectedEOF }); err != io.ErrUnexpectedEOF {
		t.Errorf("a reader that meets the end of something else: %v, want io.ErrUnexpectedEOF", err)
	}
	if _, err := in.Score(ctx, o,
		func(l *llama.Logits) error { cancel(ours); _, _, err := l.Next(); return err }); !errors.Is(err, ours) {
		t.Errorf("cancelled: %v, want the cause", err)
	}
	if _, err := in.Score(t.Context(), o, first); !errors.As(err, &run) {
		t.Errorf("a reader that stops: %v, want a *RunError", err)
	}
	o.TextFile = writeText(t, "short")
	if _, err := in.Score(t.Context(), o, first); !errors.As(err, &run) || !strings.Contains(run.Message, "too few") {
		t.Errorf("a driver that fails: %v, want its message", err)
	}
}

// TestLogitsOfControlTokens checks that the name of a control token in a text stays text.
func TestLogitsOfControlTokens(t *testing.T) {
	in := llamatest.ForTest(t)
	text := strings.Repeat("</s>", 4)
	o := llama.Options{Model: llamatest.Model(t, dense), TextFile: writeText(t, text),
		Logits: filepath.Join(t.TempDir(), "logits"), Context: 8, Threads: 1}
	if r := run(t, in, o); r.PromptTokens != 1+len(text) {
		t.Errorf("%d tokens, want %d", r.PromptTokens, 1+len(text))
	}
}

func TestLogitsFail(t *testing.T) {
	in := llamatest.ForTest(t)
	model, text, dir := llamatest.Model(t, dense), writeText(t, logitsText), t.TempDir()
	out := filepath.Join(dir, "logits")
	for _, c := range []struct {
		name    string
		o       llama.Options
		code    int
		message string
	}{
		{"short text", llama.Options{TextFile: writeText(t, "short"), Logits: out}, 1, "too few for one chunk of 256"},
		{"empty text", llama.Options{TextFile: writeText(t, ""), Logits: out}, 1, "too few"},
		{"no such text", llama.Options{TextFile: filepath.Join(dir, "none"), Logits: out}, 1, "No such file"},
		{"a directory", llama.Options{TextFile: dir, Logits: out}, 1, "Is a directory"},
		{"no directory to write to", llama.Options{TextFile: text, Logits: filepath.Join(dir, "none", "x")}, 1,
			"No such file"},
		{"no text", llama.Options{Logits: out}, 2, "go together"},
		{"text alone", llama.Options{TextFile: text}, 2, "go together"},
		{"chunks alone", llama.Options{Chunks: 1}, 2, "go together"},
		{"with a prompt", llama.Options{TextFile: text, Logits: out, Prompt: "x"}, 2, "takes no prompt"},
		{"two contexts", llama.Options{TextFile: text, Logits: out, Contexts: 2}, 2, "takes no prompt"},
		{"tiny chunks", llama.Options{TextFile: text, Logits: out, Context: 3}, 2, "at least 4"},
		{"a full device", llama.Options{TextFile: text, Logits: "/dev/full", Context: 16}, 1, "/dev/full"},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.o.Model, c.o.Threads, c.o.Warmup = model, 1, "none"
			_, err := in.Run(t.Context(), c.o)
			var run *llama.RunError
			if !errors.As(err, &run) {
				t.Fatalf("error is %v, want a RunError", err)
			}
			if run.Exit.ExitCode() != c.code || !strings.Contains(run.Message, c.message) ||
				strings.Contains(run.Message, "\n") {
				t.Errorf("exit code %d, message %q; want %d and one line with %q", run.Exit.ExitCode(), run.Message,
					c.code, c.message)
			}
			if left, err := os.ReadDir(dir); len(left) > 0 || err != nil {
				t.Errorf("left %v, %v; want nothing", left, err)
			}
		})
	}
}

// logitsFile encodes predictions of the vocabulary {0, 1}: one chunk of eight tokens.
func logitsFile() []byte {
	b := []byte("TCLOGIT1\x02\x00\x00\x00\x08\x00\x00\x00\x01\x00\x00\x00\x03\x00\x00\x00")
	for range 3 {
		b = append(b, "\x01\x00\x00\x00\x00\x00\x80\x3f\x00\x00\x00\xc0"...) // token 1; 1 and -2
	}
	return b
}

func TestReadLogits(t *testing.T) {
	whole := logitsFile()
	l, err := llama.NewLogits(bytes.NewReader(whole))
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if target, logits, err := l.Next(); target != 1 || !slices.Equal(logits, []float32{1, -2}) || err != nil {
			t.Fatalf("%d, %v, %v; want token 1 with the logits 1 and -2", target, logits, err)
		}
	}
	if _, _, err := l.Next(); err != io.EOF {
		t.Errorf("at the end: %v, want io.EOF", err)
	}
	for n := range whole {
		l, err := llama.NewLogits(bytes.NewReader(whole[:n]))
		for err == nil {
			_, _, err = l.Next()
		}
		if !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("cut to %d bytes: %v, want io.ErrUnexpectedEOF", n, err)
		}
	}
	for at, value := range map[int]byte{0: 'X', 8: 0, 11: 0xff, 12: 3, 16: 0, 20: 0} {
		broken := bytes.Clone(whole)
		broken[at] = value
		if _, err := llama.NewLogits(bytes.NewReader(broken)); err == nil || errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("byte %d is %d: %v, want an error of the header", at, value, err)
		}
	}
	whole[24] = 2 // a token that the vocabulary does not have
	l, err = llama.NewLogits(bytes.NewReader(whole))
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := l.Next(); err == nil ||
		!strings.Contains(err.Error(), "prediction 1: token 2 of a vocabulary of 2") {
		t.Errorf("a token outside the vocabulary: %v", err)
	}
}

func FuzzLogits(f *testing.F) {
	f.Add(logitsFile())
	f.Add(logitsFile()[:30])
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := llama.NewLogits(bytes.NewReader(b))
		if err != nil {
			return
		}
		for n := 0; ; n++ {
			target, logits, err := l.Next()
			if err == io.EOF && n == l.Predictions() {
				return
			}
			if err != nil {
				if err == io.EOF {
					t.Fatalf("the end after %d of %d", n, l.Predictions())
				}
				return
			}
			if target < 0 || int(target) >= l.Vocab || len(logits) != l.Vocab {
				t.Fatalf("token %d, %d logits, vocabulary %d", target, len(logits), l.Vocab)
			}
		}
	})
}
