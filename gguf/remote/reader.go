package remote

// This file reads parts of one file by range requests, and checks the answers.

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
)

const (
	// pieceBytes is how much is asked for at once. The metadata of most models are 2 to 13 MB, and a request takes as
	// long as some hundred KB.
	pieceBytes = 1 << 20
	// maxFetched bounds what is fetched of one file.
	maxFetched = 64 << 20
	// maxSize bounds what is believed of a file's size, so that sums do not overflow.
	maxSize = 1 << 50
)

// reader is an io.ReaderAt of a file on a server. It keeps one piece, as the parser goes from front to back. It is for
// one goroutine.
type reader struct {
	ctx     context.Context
	client  *http.Client
	at      *url.URL // where the file was found in the end
	size    int64    // of the file; 0 before the first answer
	mark    string   // the server's mark for this state of the file (ETag); "" if it gives none
	piece   []byte
	from    int64 // offset of piece
	fetched int64
}

// ReadAt reads from the piece that is here, and fetches the next one where that ends.
func (r *reader) ReadAt(b []byte, off int64) (n int, err error) {
	if off < 0 {
		return 0, fmt.Errorf("read at %d", off)
	}
	for n < len(b) {
		at := off + int64(n)
		if at >= r.size {
			return n, io.EOF
		}
		if at < r.from || at >= r.from+int64(len(r.piece)) {
			if err := r.fetch(at); err != nil {
				return n, err
			}
		}
		n += copy(b[n:], r.piece[at-r.from:])
	}
	return n, nil
}

// fetch fetches the piece from off on. The first fetch, at 0, also finds the file's size.
func (r *reader) fetch(off int64) error {
	if r.fetched >= maxFetched {
		return ErrTooMuch
	}
	end := off + pieceBytes
	if r.size > 0 {
		end = min(end, r.size)
	}
	q, err := http.NewRequestWithContext(r.ctx, http.MethodGet, r.at.String(), nil)
	if err != nil {
		return err
	}
	q.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", off, end-1))
	q.Header.Set("Accept-Encoding", "identity") // offsets are those of the file, not of a compressed one
	if r.mark != "" {
		q.Header.Set("If-Range", r.mark)
	}
	answer, err := r.client.Do(q)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusPartialContent {
		return r.refuse(answer)
	}
	length, err := r.checkAnswer(answer, off, end)
	if err != nil {
		return err
	}
	piece := make([]byte, length)
	n, err := io.ReadFull(answer.Body, piece)
	r.fetched += int64(n)
	if err != nil {
		return fmt.Errorf("%w: it ends after %d of %d bytes", ErrAnswer, n, length)
	}
	r.piece, r.from = piece, off
	r.at = answer.Request.URL // the next requests need no redirects
	return nil
}

// checkAnswer checks the header of an answer to a request for the bytes from off to end. It returns how many bytes are
// to come. It notes the size and the mark of the file at the first answer, and compares them later.
func (r *reader) checkAnswer(answer *http.Response, off, end int64) (length int64, err error) {
	text := answer.Header.Get("Content-Range")
	var first, last, size int64
	if n, err := fmt.Sscanf(text, "bytes %d-%d/%d", &first, &last, &size); err != nil || n != 3 {
		return 0, fmt.Errorf("%w: it says %.60q", ErrAnswer, text)
	}
	mark := answer.Header.Get("ETag")
	if strings.HasPrefix(mark, "W/") { // it says nothing of single bytes (RFC 9110, 13.1.5)
		mark = ""
	}
	switch {
	case answer.Header.Get("Content-Encoding") != "":
		return 0, fmt.Errorf("%w: it is compressed", ErrAnswer)
	case size <= 0 || size > maxSize:
		return 0, fmt.Errorf("%w: a file of %d bytes", ErrAnswer, size)
	case first != off || last != min(end, size)-1:
		return 0, fmt.Errorf("%w: bytes %d to %d instead of %d to %d", ErrAnswer, first, last, off, end-1)
	case r.size > 0 && (size != r.size || mark != r.mark):
		return 0, fmt.Errorf("%w: the file has changed meanwhile", ErrAnswer)
	}
	r.size, r.mark = size, mark
	return last - first + 1, nil
}

// refuse explains an answer that is no part of a file. Of a whole file it reads the first bytes.
func (r *reader) refuse(answer *http.Response) error {
	switch {
	case answer.StatusCode == http.StatusOK && r.size > 0:
		return fmt.Errorf("%w: the file has changed meanwhile", ErrAnswer)
	case answer.StatusCode == http.StatusOK:
		head := make([]byte, len(magic))
		n, _ := io.ReadFull(answer.Body, head) // what cannot be read is no model
		r.fetched += int64(n)
		if !bytes.Equal(head[:n], magic) {
			return fmt.Errorf("%w: it is no GGUF file, but %.60q (of a page about a file, take the link to download it)",
				ErrAnswer, answer.Header.Get("Content-Type"))
		}
		return ErrNoRanges
	case answer.StatusCode == http.StatusUnauthorized || answer.StatusCode == http.StatusForbidden:
		return fmt.Errorf("the server wants to know who asks (status %d): download the file, and name it", answer.StatusCode)
	}
	return fmt.Errorf("the server answers with status %d", answer.StatusCode)
}

// magic is how a GGUF file begins.
var magic = []byte("GGUF")
