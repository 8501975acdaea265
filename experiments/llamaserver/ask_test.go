package llamaserver

// This file tests how a server is asked for tokens, with a server that is played.

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"tensorcast/experiments/llama"
)

// fakeServer answers as llama-server does: each token's id is one more than the number of tokens
// before it, and 100 more for each letter of a model's name. broken, if not empty, is its answer to the second request.
func fakeServer(t *testing.T, broken string) *httptest.Server {
	t.Helper()
	health, requests := 0, 0
	var one sync.Mutex
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) {
		if health++; health < 3 {
			http.Error(w, `{"error": "loading"}`, http.StatusServiceUnavailable)
		}
	})
	mux.HandleFunc("POST /completion", func(w http.ResponseWriter, r *http.Request) {
		one.Lock()
		defer one.Unlock()
		var q struct {
			Prompt  []any  `json:"prompt"`
			Model   string `json:"model"`
			Tokens  int    `json:"n_predict"`
			Cache   *bool  `json:"cache_prompt"`
			Returns bool   `json:"return_tokens"`
		}
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil || q.Prompt[0] != "once" || q.Cache == nil ||
			*q.Cache || !q.Returns {
			t.Errorf("%v: asked for %+v", err, q)
		}
		if requests++; requests == 2 && broken != "" {
			fmt.Fprint(w, broken)
			return
		}
		var ids []int
		for i := range q.Tokens {
			ids = append(ids, len(q.Prompt)+i+100*len(q.Model))
		}
		if err := json.NewEncoder(w).Encode(map[string]any{"content": fmt.Sprint(ids), "tokens": ids}); err != nil {
			t.Error(err)
		}
	})
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s
}

// The server's tokens are printed as llamarun prints its own. Each request begins where the one
// before has ended.
func TestAsk(t *testing.T) {
	var out bytes.Buffer
	q := Questions{Base: fakeServer(t, "").URL, Prompt: "once", Tokens: 10}
	if err := PrintAnswers(t.Context(), q, &out); err != nil {
		t.Fatal(err)
	}
	stream, err := llama.NewStream(&out)
	if err != nil {
		t.Fatal(err)
	}
	text := ""
	for i := range 10 {
		token, err := stream.Next()
		if err != nil || token.Token != i || token.ID != int32(i+1) || token.End < token.Begin || token.Begin == 0 {
			t.Errorf("token %d is %+v, %v", i, token, err)
		}
		text += token.Text
	}
	if _, err := stream.Next(); err == nil || text != "[1 2 3 4][5 6 7 8][9 10]" {
		t.Errorf("%v; the text is %q, want three requests and the end", err, text)
	}
	for broken, want := range map[string]string{
		`{"content": "a", "tokens": []}`:                                "generated 0 tokens",
		`{"content": "a", "tokens": [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2]}`: "generated 11 tokens",
		`no JSON`: "the server's answer",
	} {
		q := Questions{Base: fakeServer(t, broken).URL, Prompt: "once", Tokens: 10}
		if err := PrintAnswers(t.Context(), q, &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", broken, err, want)
		}
	}
}

// The models of a router are asked at the same time, and their tokens come in turns, as they come each time.
func TestAskRouter(t *testing.T) {
	var out bytes.Buffer
	q := Questions{Base: fakeServer(t, "").URL, Models: []string{"a", "bc"}, Prompt: "once", Tokens: 13}
	if err := PrintAnswers(t.Context(), q, &out); err != nil {
		t.Fatal(err)
	}
	stream, err := llama.NewStream(&out)
	if err != nil {
		t.Fatal(err)
	}
	var ids, contexts []int
	for {
		token, err := stream.Next()
		if err != nil {
			break
		}
		ids, contexts = append(ids, int(token.ID)), append(contexts, token.Context)
	}
	want := []int{101, 102, 103, 104, 201, 202, 203, 204, 105, 106, 107, 108, 205}
	if !slices.Equal(ids, want) || !slices.Equal(contexts, []int{0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 1}) {
		t.Errorf("tokens %v of contexts %v, want %v", ids, contexts, want)
	}
}
