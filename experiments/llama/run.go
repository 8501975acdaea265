package llama

// This file runs the driver and reads its result.

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
)

// Options says what the driver does. Zero values mean the driver's defaults, except for Tokens.
type Options struct {
	Model  string // path of the GGUF file (of a split model: its first part)
	Prompt string // may be empty if the model begins a text with a BOS token
	// Tokens is how many tokens are generated. The end-of-sequence token does not stop the
	// generation. 0 decodes only the prompt.
	Tokens   int
	Threads  int    // 0: LLAMA_ARG_THREADS of the environment, or else the number of available CPUs
	Context  int    // context size in tokens; 0: what prompt and Tokens need, at least 512
	Repeat   int    // generations in one process, each from an empty memory; 0: 1
	NoRepack bool   // use weights in the mapped file instead of repacked copies
	LoadMode string // none, mmap, mlock, mmap+mlock, dio; "": the library's default (mmap)
	Warmup   string // cli: decode BOS and EOS once, as llama-cli does; all: the same with all experts; none; "": cli
	Idle     int    // seconds to wait when the model is loaded and warmed up, as a server does
	Pause    int    // milliseconds to wait after each token, as for a slow reader
	// Mark is a descriptor to which a byte is written for each mark: b after the prompt, t after
	// each token; 0: none.
	Mark int
	Ops  string // file for the ground truth, see [ReadOps]; it appears when it is complete

	Model2     string   // a second model, in contexts of its own that are numbered after the first model's
	Contexts   int      // contexts per model, which are decoded in turn, token by token; 0: 1
	Concurrent bool     // decode each context in a thread of its own
	Parallel   int      // sequences per context, which are decoded in one batch; 0: 1
	Prompts    []string // further prompts; Prompt and these are dealt to the contexts' sequences in turn
	// Guess is how many guessed tokens at most are decoded with each token. It needs one context
	// with one sequence; 0: none.
	Guess    int
	CountOps bool // fill in Result.Nodes and Result.Ops
	// Stream prints each token when it is generated, for [NewStream], instead of a result. SIGTERM
	// then ends the run after the current generation.
	Stream bool

	// Logits is a file for the predictions of a text's tokens, see [NewLogits]. Nothing is
	// generated then. The file appears when it is complete; into a pipe the predictions are written
	// one by one. Logits requires one context of one model, and neither Prompt nor Tokens. Context
	// is then the length of a chunk, by default 256.
	Logits   string
	TextFile string // the text, with Logits
	Chunks   int    // largest number of chunks; 0: all
}

func (o Options) args() []string {
	// A value follows a long flag after "=", and is the next argument of a short flag, so that
	// values may begin with "-".
	args := []string{"-m", o.Model, "-n", strconv.Itoa(o.Tokens)}
	if o.Prompt != "" || o.Logits == "" {
		args = append(args, "-p", o.Prompt)
	}
	for _, p := range o.Prompts {
		args = append(args, "-p", p)
	}
	for _, f := range []struct {
		flag  string
		value int
	}{{"-t", o.Threads}, {"-c", o.Context}} {
		if f.value != 0 {
			args = append(args, f.flag, strconv.Itoa(f.value))
		}
	}
	for _, f := range []struct {
		flag  string
		value int
	}{{"--repeat=", o.Repeat}, {"--idle=", o.Idle}, {"--pause=", o.Pause}, {"--mark=", o.Mark},
		{"--contexts=", o.Contexts}, {"--parallel=", o.Parallel}, {"--chunks=", o.Chunks}, {"--guess=", o.Guess}} {
		if f.value != 0 {
			args = append(args, f.flag+strconv.Itoa(f.value))
		}
	}
	for _, f := range []struct {
		flag string
		set  bool
	}{{"--no-repack", o.NoRepack}, {"--concurrent", o.Concurrent}, {"--count-ops", o.CountOps},
		{"--stream", o.Stream}} {
		if f.set {
			args = append(args, f.flag)
		}
	}
	for _, f := range []struct{ flag, value string }{
		{"--load-mode=", o.LoadMode}, {"--warmup=", o.Warmup}, {"--ops=", o.Ops}, {"--model2=", o.Model2},
		{"--logits=", o.Logits}, {"--text-file=", o.TextFile},
	} {
		if f.value != "" {
			args = append(args, f.flag+f.value)
		}
	}
	return args
}

// Generation is one generation of text in one sequence of one context: the prompt and the tokens after it.
type Generation struct {
	Context  int     `json:"context"`
	Sequence int     `json:"sequence"`
	Text     string  `json:"text"` // text of Tokens; bytes that are not valid UTF-8 are U+FFFD
	Tokens   []int32 `json:"tokens"`
	PromptMs float64 `json:"prompt_ms"`
	// per token, for choosing and decoding it (with those of the context's other sequences)
	TokenMs []float64 `json:"token_ms"`
	TokS    float64   `json:"tok_s"`   // tokens per second, without the prompt
	Decodes int       `json:"decodes"` // with Options.Guess, how many generated the tokens
}

// Result is what the driver prints. Times are wall-clock milliseconds.
type Result struct {
	Generation                // the first generation
	Repeat       []Generation `json:"repeat"` // the other generations: by repeat, then context, then sequence
	PID          int          `json:"pid"`
	PromptTokens int          `json:"prompt_tokens"` // with Options.Logits: tokens of the text
	Threads      int          `json:"threads"`
	LoadMs       float64      `json:"load_ms"` // loading the model and creating the context
	WarmupMs     float64      `json:"warmup_ms"`
	Llama        string       `json:"llama"` // ggml's version and commit
	Lib          string       `json:"lib"`   // directory of the libraries

	// With Options.CountOps, Nodes is the number of nodes that all contexts computed, including
	// warm-ups, and Ops the same by ggml's name of the op. Nodes that compute nothing (views) are
	// not counted. Ops that ggml fuses at run time are counted one by one.
	Nodes int64            `json:"nodes"`
	Ops   map[string]int64 `json:"ops"`
}

// Generations returns all generations, in order.
func (r *Result) Generations() []Generation {
	return append([]Generation{r.Generation}, r.Repeat...)
}

// RunError says that the driver failed. It wraps the [*exec.ExitError], which has the signal that
// ended the driver, if any (as by the OOM killer).
type RunError struct {
	Message string // the driver's error message, without its name; or how it ended
	Exit    *exec.ExitError
}

func (e *RunError) Error() string { return driverName + ": " + e.Message }

func (e *RunError) Unwrap() error { return e.Exit }

// Command returns the command that runs the driver, for callers that start it themselves. It prints
// its result as JSON on stdout, see [ParseResult].
func (in *Installation) Command(ctx context.Context, o Options) *exec.Cmd {
	return exec.CommandContext(ctx, in.Driver, o.args()...)
}

// Run runs the driver to its end. If the driver fails, the error is a [*RunError]. Ending ctx kills the driver.
func (in *Installation) Run(ctx context.Context, o Options) (*Result, error) {
	cmd := in.Command(ctx, o)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := driverError(ctx, cmd.Run(), stderr.String()); err != nil {
		return nil, err
	}
	return ParseResult(stdout.Bytes())
}

// driverError turns the error of a driver that printed stderr into the error to report; nil if err is
// nil.
func driverError(ctx context.Context, err error, stderr string) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", driverName, context.Cause(ctx))
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		message := exit.Error()
		if text := strings.TrimSpace(stderr); text != "" {
			message = strings.TrimPrefix(text, driverName+": ")
			if exit.ExitCode() < 0 { // ended by a signal: its output may be incomplete
				message = exit.Error() + ": " + message
			}
		}
		return &RunError{Message: message, Exit: exit}
	}
	if err != nil {
		return fmt.Errorf("%s: %w", driverName, err)
	}
	return nil
}

// ParseResult parses the driver's output.
func ParseResult(stdout []byte) (*Result, error) {
	var r Result
	if err := json.Unmarshal(stdout, &r); err != nil {
		return nil, fmt.Errorf("result of %s: %w", driverName, err)
	}
	return &r, nil
}
