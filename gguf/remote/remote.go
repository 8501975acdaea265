// Package remote reads the structure of a model that lies on a web server. It asks for the bytes of the metadata alone,
// by range requests, and not for weights. What a server says is not believed: every answer must be the part that was
// asked for, of a file that has not changed since, and the parser checks what is in it.
package remote

// This file opens a model by its URL.

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"path"
	"time"

	"tensorcast/gguf"
)

var (
	// ErrURL says that a URL is not one of a file on a web server.
	ErrURL = errors.New("want the address of a file: https://HOST/PATH/MODEL.gguf")
	// ErrNoRanges says that a server sends only whole files.
	ErrNoRanges = errors.New("the server sends the whole file and no part of it: download it, and name the file")
	// ErrAnswer says that a server's answer is not what was asked for.
	ErrAnswer = errors.New("the server's answer is not the part of the file that was asked for")
	// ErrTooMuch says that the metadata are larger than what is fetched.
	ErrTooMuch = errors.New("the metadata are larger than those of any known model: download it, and name the file")
)

const (
	// answerTimeout bounds one request, with its redirects and the bytes of its answer.
	answerTimeout = 30 * time.Second
	// maxRedirects is how often a server may send on to another address. Download sites do so once or twice.
	maxRedirects = 5
)

// IsURL reports whether a name is an address of a web server and not a path.
func IsURL(name string) bool {
	u, err := url.Parse(name)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https")
}

// OpenModel reads the structure of the model at a URL (http or https), with all parts of a split model, which must be
// beside it. Redirects are followed, though not from https to http. The model's File.Path are the names of the files,
// without the rest of the URL, which may hold secrets. The model uses ctx and client again only where a gguf.File uses
// its reader.
//
// client may be nil. Each part costs its metadata, rounded up to pieces of 1 MiB, and no more than 64 MiB. fetched is
// how many bytes came, also with an error. Errors wrap ErrURL, ErrNoRanges, ErrAnswer, ErrTooMuch, those of gguf.Parse
// or gguf.OpenModel, or are of the network.
func OpenModel(ctx context.Context, client *http.Client, address string) (m *gguf.Model, fetched int64, err error) {
	at, err := url.Parse(address)
	if err != nil || at.Scheme != "http" && at.Scheme != "https" || at.Host == "" {
		return nil, 0, ErrURL // not its text: the URL may hold a password
	}
	own := http.Client{Timeout: answerTimeout}
	if client != nil {
		own = *client
	}
	own.CheckRedirect = checkRedirect
	name := path.Base(at.Path)
	m, err = gguf.OpenModelBy(name, func(part string) (*gguf.File, error) {
		u := *at
		u.Path, u.RawPath = path.Join(path.Dir(at.Path), part), ""
		f, n, err := openFile(ctx, &own, &u)
		fetched += n
		if err != nil {
			return nil, fmt.Errorf("read %s of %s: %w", part, at.Hostname(), withoutURL(err))
		}
		f.Path = part
		return f, nil
	})
	return m, fetched, err
}

// openFile reads the structure of one file, and says how many bytes came for it.
func openFile(ctx context.Context, client *http.Client, at *url.URL) (*gguf.File, int64, error) {
	r := &reader{ctx: ctx, client: client, at: at}
	if err := r.fetch(0); err != nil {
		return nil, r.fetched, err
	}
	f, err := gguf.Parse(r, r.size)
	return f, r.fetched, err
}

// checkRedirect decides whether to follow a server that sends on to another address.
func checkRedirect(to *http.Request, via []*http.Request) error {
	switch {
	case len(via) > maxRedirects:
		return fmt.Errorf("the server sends on more than %d times", maxRedirects)
	case to.URL.Scheme != "https" && via[len(via)-1].URL.Scheme == "https":
		return errors.New("the server sends on from https to an address that is not encrypted")
	}
	return nil
}

// withoutURL removes the URL, which may hold secrets, from an error of package http.
func withoutURL(err error) error {
	var of *url.Error
	if errors.As(err, &of) {
		return of.Err
	}
	return err
}
