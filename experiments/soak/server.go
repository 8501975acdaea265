package soak

// This file asks a llama-server for tokens, and prints them as llamarun --stream does. So a server
// can be a target.

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"golang.org/x/sys/unix"

	"tensorcast/experiments/llama"
)

const (
	// requestTokens is how many tokens a request asks for. There are several requests, between
	// which the server is idle, and at each of which something may happen.
	requestTokens = 4
	// retryInterval is how long to wait for a server that is loading.
	retryInterval = 50 * time.Millisecond
	// maxAnswer bounds an answer, in bytes.
	maxAnswer = 1 << 20
)

// PrintAnswers waits until the llama-server at base (http://host:port) has loaded its model. Then it asks
// the server for tokens that follow a prompt, a few at a time, the likeliest each time, and prints
// each as it comes. The server computes each request from its first token on (cache_prompt is off),
// so that the same tokens come whatever was asked before.
func PrintAnswers(ctx context.Context, base, prompt string, tokens int, w io.Writer) error {
	if err := awaitServer(ctx, base); err != nil {
		return err
	}
	out := json.NewEncoder(w)
	if err := out.Encode(llama.Result{}); err != nil { // llamarun's first line says that the model is loaded
		return err
	}
	all := []any{prompt}
	for n := 0; n < tokens; {
		begin, err := monotonic()
		if err != nil {
			return err
		}
		var answer struct {
			Content string  `json:"content"`
			Tokens  []int32 `json:"tokens"`
		}
		err = post(ctx, base+"/completion", map[string]any{
			"prompt": all, "n_predict": min(requestTokens, tokens-n), "temperature": 0, "cache_prompt": false,
			"ignore_eos": true, "return_tokens": true,
		}, &answer)
		if err != nil {
			return err
		}
		if len(answer.Tokens) == 0 || len(answer.Tokens) > tokens-n {
			return fmt.Errorf("the server generated %d tokens, %d were asked for", len(answer.Tokens),
				min(requestTokens, tokens-n))
		}
		end, err := monotonic()
		if err != nil {
			return err
		}
		for i, id := range answer.Tokens {
			t := llama.Token{Token: n, ID: id, Begin: begin, End: end}
			if i == 0 {
				t.Text = answer.Content
			}
			if err := out.Encode(t); err != nil {
				return err
			}
			all = append(all, id)
			n++
		}
	}
	return nil
}

// monotonic is the time of llama.Token, in ns.
func monotonic() (int64, error) {
	var now unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)
	return now.Nano(), err
}

// awaitServer waits until a server has loaded its model.
func awaitServer(ctx context.Context, base string) error {
	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/health", nil)
		if err != nil {
			return fmt.Errorf("ask the server whether it is ready: %w", err)
		}
		if response, err := http.DefaultClient.Do(request); err == nil {
			_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, maxAnswer))
			if err := response.Body.Close(); err == nil && response.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(retryInterval):
		}
	}
}

func post(ctx context.Context, url string, question, answer any) (err error) {
	body, err := json.Marshal(question)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return fmt.Errorf("ask the server for tokens: %w", err)
	}
	defer func() { err = errors.Join(err, response.Body.Close()) }()
	data, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("read the server's answer: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("the server answers %s: %.200s", response.Status, data)
	}
	if err := json.Unmarshal(data, answer); err != nil {
		return fmt.Errorf("the server's answer: %w", err)
	}
	return nil
}
