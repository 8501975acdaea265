package replay

// This file says what memory for experts buys, and whether that is more than its share of the choices: if routers
// chose at random, a tenth of the experts in memory would hold a tenth of what is chosen, whatever is kept.

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"tensorcast/internal/stats"
	"tensorcast/internal/tabular"
	"tensorcast/moe"
)

// Locality says what memory for experts buys: with prefetchd's policy, with LRU, with Belady's rule, which knows the
// future, and if every layer chose at random. Rates are shares of the chosen experts.
type Locality struct {
	// Told says that there are enough generated tokens to tell whether use is local.
	Told bool `json:"told"`
	// Local says that prefetchd's policy finds clearly more in memory than random routing would let it: in some row
	// of at most MostShare the gain, less its error, is above the margin.
	Local  bool        `json:"local"`
	Margin float64     `json:"margin"`
	Rows   []MemoryRow `json:"rows"` // ascending
	// At is the index of the row that the verdict is about.
	At int `json:"at"`
	// Knee is how many bytes of experts in memory are enough that reading what is missing takes no longer than
	// computing, with prefetchd's policy: from there on more memory makes tokens at most twice as fast, and if
	// reading and computing overlapped, not at all. It is interpolated between rows. 0 means any memory.
	Knee      int64         `json:"knee_bytes"`
	KneeShare float64       `json:"knee_share"` // of all experts
	Compute   time.Duration `json:"compute_ns"` // of a token
	Bandwidth float64       `json:"disk_bytes_per_second"`

	tokens   int
	all      int64 // bytes of all experts
	perToken int64 // bytes of the experts that a token chooses, on average
}

// MemoryRow says what one amount of memory for experts buys.
type MemoryRow struct {
	Bytes     int64     `json:"bytes"`
	Share     float64   `json:"share"` // of all experts
	Prefetchd MemoryUse `json:"prefetchd"`
	LRU       MemoryUse `json:"lru"`
	Belady    MemoryUse `json:"belady"`
	// Uniform is what is found if routers choose at random: the share, whatever is kept.
	Uniform MemoryUse `json:"uniform"`
	// Gain is how much more prefetchd's policy finds than that. GainError is half of its 95 % confidence interval,
	// from blocks of consecutive tokens. It is 1 if there are too few tokens.
	Gain      float64 `json:"gain"`
	GainError float64 `json:"gain_error"`
}

// MemoryUse says what a policy finds in memory.
type MemoryUse struct {
	HitRate float64 `json:"hit_rate"`
	Missed  int64   `json:"missed_bytes_per_token"`
	// TokS is tokens per second: a layer waits for the disk until what its router chose is there, and then
	// computes. It is 0 if no token takes time.
	TokS float64 `json:"tokens_per_second"`
}

const (
	// localMargin is how much more than at random has to be found in memory for use to be called local. Less than
	// that is worth no more than a few percent of a token's time.
	localMargin = 0.05
	// MostShare is the greatest share of the experts that the verdict goes by: beyond it nearly all is found anyway.
	MostShare = 0.9
	// localBlocks is into how many blocks the tokens are cut. Neighbouring tokens choose alike, so that single tokens
	// would look more certain than they are.
	localBlocks = 8
	// localQuantile is that of Student's distribution for 95 % and localBlocks-1 degrees of freedom.
	localQuantile = 2.365
	// leastTokens is how many generated tokens there have to be.
	leastTokens = 4 * localBlocks
)

// memoryShares are the shares of all experts in the rows of a Locality.
var memoryShares = []float64{0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9}

// NewLocality replays a trace in memories of several sizes: tenths of all experts, and o.Rooms. Memory is full at the
// beginning, as in Config.Full. It fails with ctx's error, or as Run does.
func NewLocality(ctx context.Context, t *moe.Trace, o Options) (*Locality, error) {
	var parts []func(context.Context) error
	l, err := prepareLocality(t, &o, &parts)
	if err != nil {
		return nil, err
	}
	if err := runParts(ctx, parts, &o); err != nil {
		return nil, err
	}
	l.judge()
	return l, nil
}

// prepareLocality makes the rows, and lists the replays that fill them. Then judge is to be called.
func prepareLocality(t *moe.Trace, o *Options, parts *[]func(context.Context) error) (*Locality, error) {
	first, s := t.FirstDecode(), t.Shape()
	switch {
	case first == len(t.Tokens):
		return nil, ErrNoDecode
	case t.TokenBytes() == 0:
		return nil, ErrNoSizes
	}
	l := &Locality{
		Margin: localMargin, tokens: len(t.Tokens) - first, all: allBytes(t), Bandwidth: o.Disk.Bandwidth,
		Compute: (o.Compute.Before + o.Compute.After) * time.Duration(s.Layers),
	}
	for _, share := range memoryShares {
		l.Rows = append(l.Rows, MemoryRow{Bytes: int64(share * float64(l.all))})
	}
	for _, bytes := range o.Rooms {
		if !slices.ContainsFunc(l.Rows, func(r MemoryRow) bool { return r.Bytes == bytes }) {
			l.Rows = append(l.Rows, MemoryRow{Bytes: bytes})
		}
	}
	slices.SortFunc(l.Rows, func(a, b MemoryRow) int { return cmp.Compare(a.Bytes, b.Bytes) })
	for i := range l.Rows {
		r := &l.Rows[i]
		r.Share = float64(r.Bytes) / float64(l.all)
		*parts = append(*parts, func(ctx context.Context) error {
			var configs []Config
			for _, p := range []moe.Policy{moe.NewScored(s), moe.NewLRU(s), NewBelady(t)} {
				configs = append(configs, Config{
					Capacity: r.Bytes, Policy: p, Threshold: 1, Disk: o.Disk, Compute: o.Compute, Full: true,
				})
			}
			results, err := Run(ctx, t, Forecast{}, configs...)
			if err != nil {
				return err
			}
			r.fill(results, o, s)
			return nil
		})
	}
	for token := first; token < len(t.Tokens); token++ {
		for layer := range s.Layers {
			l.perToken += int64(len(t.Chosen(token, layer))) * t.Layers[layer].Bytes
		}
	}
	l.perToken /= int64(l.tokens)
	return l, nil
}

// allBytes is how many bytes all experts have.
func allBytes(t *moe.Trace) (sum int64) {
	for _, l := range t.Layers {
		sum += l.Bytes * int64(t.Experts)
	}
	return sum
}

// fill fills in what the replays of prefetchd's policy, of LRU and of Belady's rule found.
func (r *MemoryRow) fill(results []*Result, o *Options, s moe.Shape) {
	for i, to := range []*MemoryUse{&r.Prefetchd, &r.LRU, &r.Belady} {
		result := results[i]
		*to = MemoryUse{HitRate: result.HitRate(), Missed: result.PerToken(result.DemandBytes)}
		to.setTime(result.Time / time.Duration(max(result.Tokens, 1)))
	}
	live := results[0]
	share := min(r.Share, 1)
	r.Uniform = MemoryUse{
		HitRate: share, Missed: int64((1 - share) * float64(live.PerToken(live.UsedBytes))),
	}
	token := (o.Compute.Before + o.Compute.After) * time.Duration(s.Layers)
	if o.Disk.Bandwidth > 0 {
		waits := float64(s.Layers) * (1 - math.Pow(share, float64(s.K))) // layers that miss something
		token += time.Duration(float64(r.Uniform.Missed)/o.Disk.Bandwidth*1e9 + waits*float64(o.Disk.Latency))
	}
	r.Uniform.setTime(token)
	r.Gain, r.GainError = live.HitRate()-share, blockError(live)
}

func (u *MemoryUse) setTime(token time.Duration) {
	if token > 0 {
		u.TokS = 1 / token.Seconds()
	}
}

// blockError is half of the 95 % confidence interval of a hit rate. It is 1 if too few tokens were observed.
func blockError(r *Result) float64 {
	var rates []float64
	for i, used := range r.TokenUsed {
		if used > 0 {
			rates = append(rates, float64(r.TokenHits[i])/float64(used))
		}
	}
	if len(rates) < leastTokens {
		return 1
	}
	_, standardError := stats.MeanOfGroups(rates, localBlocks)
	return localQuantile * standardError
}

// judge says whether use is local, and finds the knee.
func (l *Locality) judge() {
	l.Told = l.tokens >= leastTokens
	least := func(r *MemoryRow) float64 { return r.Gain - r.GainError }
	best := -1
	for i := range l.Rows {
		r := &l.Rows[i]
		if verdictDistance(r.Share) < verdictDistance(l.Rows[l.At].Share) {
			l.At = i
		}
		if r.Share <= MostShare+1e-9 && (best < 0 || least(r) > least(&l.Rows[best])) {
			best = i
		}
	}
	if best >= 0 && l.Told && least(&l.Rows[best]) > l.Margin {
		l.Local = true
		if least(&l.Rows[l.At]) <= l.Margin {
			l.At = best
		}
	}
	l.Knee = l.findKnee()
	l.KneeShare = float64(l.Knee) / float64(l.all)
}

// findKnee is the least memory with which reading takes no longer than computing.
func (l *Locality) findKnee() int64 {
	if l.Bandwidth == 0 {
		return 0
	}
	enough := l.Compute.Seconds() * l.Bandwidth // bytes that are read while a token computes
	bytes, missed := l.all, 0.0                 // with all experts nothing is missed
	for _, r := range slices.Backward(l.Rows) {
		if r.Bytes >= l.all {
			continue
		}
		if now := float64(r.Prefetchd.Missed); now > enough {
			return bytes - int64(float64(bytes-r.Bytes)*(enough-missed)/(now-missed))
		} else {
			bytes, missed = r.Bytes, now
		}
	}
	if now := float64(l.perToken); now > enough {
		return bytes - int64(float64(bytes)*(enough-missed)/(now-missed))
	}
	return 0
}

// Sentences are the verdict: what memory buys, and from where on it buys little.
func (l *Locality) Sentences() []string { return []string{l.sentence(), l.kneeSentence()} }

func (l *Locality) sentence() string {
	r := &l.Rows[l.At]
	at := fmt.Sprintf("with %s of the experts in memory (%s) %s of the choices are found there",
		percentText(r.Share), bytesText(r.Bytes), percentText(r.Prefetchd.HitRate))
	chance := percentText(min(r.Share, 1))
	switch {
	case !l.Told:
		return fmt.Sprintf("%s, where without locality it would be %s; but that is of %d generated tokens, and it takes "+
			"%d to tell whether use is local", at, chance, l.tokens, leastTokens)
	case !l.Local:
		return fmt.Sprintf("no exploitable locality: memory buys only its share: %s (± %.1f points), at random it would "+
			"be %s; each further GiB saves the same, %s a token", at, 100*r.GainError, chance,
			bytesText(int64(float64(l.perToken)/float64(l.all)*(1<<30))))
	}
	return fmt.Sprintf("%s (± %.1f points); without locality it would be %s: that saves %s of %s a token", at,
		100*r.GainError, chance, bytesText(r.Uniform.Missed-r.Prefetchd.Missed), bytesText(r.Uniform.Missed))
}

func (l *Locality) kneeSentence() string {
	computing := millisecondsText(l.Compute)
	switch {
	case l.Bandwidth == 0:
		return "the disk takes no time: tokens per second are bound by computing with any memory"
	case l.Compute == 0:
		return "computing takes no time: tokens per second are bound by the disk until all experts are in memory"
	case l.Knee == 0:
		return fmt.Sprintf("tokens per second are bound by computing (%s a token) with any memory: to read all that a "+
			"token chooses takes no longer", computing)
	}
	return fmt.Sprintf("tokens per second are bound by computing from about %s of experts in memory on (%s): there a "+
		"token takes longer to compute (%s) than to read what is missing, and no memory makes it more than twice as fast",
		bytesText(l.Knee), percentText(l.KneeShare), computing)
}

// Table has a row for each amount of memory.
func (l *Locality) Table() *tabular.Table {
	t := &tabular.Table{
		Title: fmt.Sprintf("memory for experts: choices that are found there, what a token reads besides, and tokens per "+
			"second, with a disk of %.2f GiB/s and %s of computing a token", l.Bandwidth/(1<<30), millisecondsText(l.Compute)),
		Columns: tabular.Right("memory", "share", nameScored, "read", "tok/s", nameLRU, "read", "tok/s", nameBelady,
			"read", "tok/s", "random routing", "read", "tok/s"),
	}
	for i := range l.Rows {
		r := &l.Rows[i]
		row := []string{bytesText(r.Bytes), percentText(r.Share)}
		for _, u := range []*MemoryUse{&r.Prefetchd, &r.LRU, &r.Belady, &r.Uniform} {
			speed := "-"
			if u.TokS > 0 {
				speed = tabular.Number(u.TokS)
			}
			row = append(row, fmt.Sprintf("%.1f %%", 100*u.HitRate), bytesText(u.Missed), speed)
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}
