package remote

// This file tests what is fetched of a model on a server, and which answers are refused.

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tensorcast/gguf"
	"tensorcast/gguf/gguftest"
)

// writeModel writes a mixture whose weights are much larger than its metadata.
func writeModel(t *testing.T, path string) {
	t.Helper()
	m := gguftest.MoE(4, 64)
	m.Tensors = append(m.Tensors, gguftest.Tensor{Name: "large.weight", Type: gguf.F32, Shape: []int64{4096, 4096}})
	m.Write(t, path)
}

// Of a model on a server only the metadata are fetched, and its structure is that of the file, also behind redirects.
func TestOpenModel(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "m.gguf")
	writeModel(t, path)
	var asked []string
	mux := http.NewServeMux()
	mux.Handle("/files/", http.StripPrefix("/files/", http.FileServer(http.Dir(dir))))
	mux.HandleFunc("/resolve/", func(w http.ResponseWriter, q *http.Request) {
		http.Redirect(w, q, "/files/"+filepath.Base(q.URL.Path)+"?signature=secret", http.StatusFound)
	})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		asked = append(asked, q.URL.Path+" "+q.Header.Get("Range"))
		mux.ServeHTTP(w, q)
	}))
	defer server.Close()
	want, err := gguf.OpenModel(path)
	if err != nil {
		t.Fatal(err)
	}
	got, fetched, err := OpenModel(t.Context(), nil, server.URL+"/resolve/m.gguf?download=true")
	if err != nil {
		t.Fatal(err)
	}
	if got.Size() != want.Size() || got.Tensors() != want.Tensors() || got.Files[0].Path != "m.gguf" ||
		got.Files[0].DataOffset != want.Files[0].DataOffset ||
		len(got.Files[0].Metadata) != len(want.Files[0].Metadata) {
		t.Errorf("%d bytes, %d tensors in %q; want %d and %d", got.Size(), got.Tensors(), got.Files[0].Path,
			want.Size(), want.Tensors())
	}
	if fetched != pieceBytes || fetched > want.Size()/10 {
		t.Errorf("%d bytes of %d came, want %d", fetched, want.Size(), pieceBytes)
	}
	const first = " bytes=0-1048575"
	if want := []string{"/resolve/m.gguf" + first, "/files/m.gguf" + first}; fmt.Sprint(asked) != fmt.Sprint(want) {
		t.Errorf("asked for %q, want %q", asked, want)
	}
}

// The parts of a split model are found beside the one that is named.
func TestOpenParts(t *testing.T) {
	dir := t.TempDir()
	for i := range 2 {
		m := &gguftest.Model{
			KVs: []gguftest.KV{
				{Key: "split.no", Value: uint16(i)}, {Key: "split.count", Value: uint16(2)},
				{Key: "split.tensors.count", Value: int32(2)},
			},
			Tensors: []gguftest.Tensor{
				{Name: fmt.Sprintf("blk.%d.attn_q.weight", i), Type: gguf.F32, Shape: []int64{8, 8}},
			},
		}
		m.Write(t, filepath.Join(dir, fmt.Sprintf("m-%05d-of-00002.gguf", i+1)))
	}
	server := httptest.NewServer(http.FileServer(http.Dir(dir)))
	defer server.Close()
	for _, name := range []string{"m-00001-of-00002.gguf", "m-00002-of-00002.gguf"} {
		m, _, err := OpenModel(t.Context(), server.Client(), server.URL+"/"+name)
		if err != nil || m.Tensors() != 2 {
			t.Errorf("%s: %v, want two tensors", name, err)
		}
	}
	if err := os.Remove(filepath.Join(dir, "m-00002-of-00002.gguf")); err != nil {
		t.Fatal(err)
	}
	_, _, err := OpenModel(t.Context(), server.Client(), server.URL+"/m-00001-of-00002.gguf")
	if err == nil || !strings.Contains(err.Error(), "m-00002-of-00002.gguf") || !strings.Contains(err.Error(), "404") {
		t.Errorf("a part is missing: %v", err)
	}
}

// Metadata of several pieces are read on, and a file that changes between two pieces is noticed.
func TestSeveralPieces(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.gguf")
	m := gguftest.MoE(1, 4)
	m.KVs = append(m.KVs, gguftest.KV{Key: "tokenizer.chat_template", Value: strings.Repeat("x", 5<<19)})
	m.Write(t, path)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, mark := range map[string]func(request int) string{
		"no mark": func(int) string { return "" }, "one mark": func(int) string { return `"a"` },
		"another file": func(n int) string { return fmt.Sprintf(`"%d"`, n) },
	} {
		n := 0
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			n++
			if m := mark(n); m != "" {
				w.Header().Set("ETag", m)
			}
			http.ServeContent(w, q, "m.gguf", time.Time{}, bytes.NewReader(data))
		}))
		_, fetched, err := OpenModel(t.Context(), nil, server.URL+"/m.gguf")
		server.Close()
		if changes := name == "another file"; changes != errors.Is(err, ErrAnswer) || !changes && err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if fetched > int64(len(data)) {
			t.Errorf("%s: %d bytes came of %d", name, fetched, len(data))
		}
	}
}

// An answer that is not the part that was asked for is refused, and a whole file is not read.
func TestRefused(t *testing.T) {
	part := func(status int, header map[string]string, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			for k, v := range header {
				w.Header().Set(k, v)
			}
			w.WriteHeader(status)
			_, _ = w.Write([]byte(body)) // the client may have gone
		}
	}
	ranged := func(text string) map[string]string { return map[string]string{"Content-Range": text} }
	to := func(address string) http.HandlerFunc {
		return func(w http.ResponseWriter, q *http.Request) { http.Redirect(w, q, address, http.StatusFound) }
	}
	for name, tc := range map[string]struct {
		serve http.HandlerFunc
		want  error
		says  string
	}{
		"a whole file": {part(200, nil, "GGUF"+strings.Repeat("x", 8<<20)), ErrNoRanges, "download it"},
		"a page": {
			part(200, map[string]string{"Content-Type": "text/html"}, "<html>"), ErrAnswer, "text/html",
		},
		"nothing there":    {part(404, nil, ""), nil, "status 404"},
		"a closed door":    {part(401, nil, ""), nil, "who asks"},
		"no range":         {part(206, nil, "GGUF"), ErrAnswer, "it says"},
		"another range":    {part(206, ranged("bytes 5-8/100"), "GGUF"), ErrAnswer, "instead of"},
		"less than said":   {part(206, ranged("bytes 0-99/100"), "GGUF"), ErrAnswer, "of 100 bytes"},
		"less than asked":  {part(206, ranged("bytes 0-3/100"), "GGUF"), ErrAnswer, "instead of"},
		"an endless file":  {part(206, ranged("bytes 0-1048575/9223372036854775807"), "GGUF"), ErrAnswer, "a file of"},
		"a negative size":  {part(206, ranged("bytes 0-3/-1"), "GGUF"), ErrAnswer, "a file of"},
		"an empty file":    {part(206, ranged("bytes 0--1/0"), ""), ErrAnswer, "a file of"},
		"not a model":      {part(206, ranged("bytes 0-3/4"), "GGML"), gguf.ErrNotGGUF, "m.gguf"},
		"a file cut off":   {part(206, ranged("bytes 0-3/4"), "GGUF"), gguf.ErrTruncated, "m.gguf"},
		"a circle":         {to("/m.gguf"), nil, "sends on"},
		"another protocol": {to("file:///etc/passwd"), nil, "file"},
	} {
		server := httptest.NewServer(tc.serve)
		_, fetched, err := OpenModel(t.Context(), nil, server.URL+"/m.gguf?token=secret")
		server.Close()
		if err == nil || tc.want != nil && !errors.Is(err, tc.want) || !strings.Contains(err.Error(), tc.says) ||
			strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want %v with %q", name, err, tc.want, tc.says)
		}
		if fetched > pieceBytes {
			t.Errorf("%s: %d bytes came", name, fetched)
		}
	}
	for _, address := range []string{"", "m.gguf", "ftp://host/m.gguf", "http://", "https://user:secret@\x7f/"} {
		_, _, err := OpenModel(t.Context(), nil, address)
		if !errors.Is(err, ErrURL) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v, want %v", address, err, ErrURL)
		}
	}
}

// From an encrypted address nobody is sent on to one that is not.
func TestRedirectToPlain(t *testing.T) {
	at := func(s string) *http.Request {
		u, err := url.Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		return &http.Request{URL: u}
	}
	if err := checkRedirect(at("http://b/"), []*http.Request{at("https://a/")}); err == nil {
		t.Error("followed from https to http")
	}
	if err := checkRedirect(at("https://b/"), []*http.Request{at("http://a/")}); err != nil {
		t.Error(err)
	}
}

// What is fetched is bounded, whatever the file says of its metadata.
func TestBounded(t *testing.T) {
	head := append([]byte("GGUF\x03\x00\x00\x00"), make([]byte, 16)...)
	head[8], head[16] = 0, 1 // one entry of metadata
	key := []byte{1, 0, 0, 0, 0, 0, 0, 0, 'k', 9, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0}
	head = append(head, key...) // an array of strings, 2^27 of them
	const size = 1 << 40
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		var first, last int64
		if _, err := fmt.Sscanf(q.Header.Get("Range"), "bytes=%d-%d", &first, &last); err != nil {
			t.Error(err)
		}
		b := make([]byte, last-first+1) // empty strings without end
		if first == 0 {
			copy(b, head)
		}
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", first, last, int64(size)))
		w.WriteHeader(http.StatusPartialContent)
		_, _ = w.Write(b) // the client may have gone
	}))
	defer server.Close()
	_, fetched, err := OpenModel(t.Context(), nil, server.URL+"/m.gguf")
	if err == nil || fetched > maxFetched {
		t.Errorf("%d bytes came, %v", fetched, err)
	}
}
