package sim

// This file implements the page cache and the disk.

// page is a page of a file. As in Linux, pages that are present are in one of two lists: those that
// reclaim found touched are in the active list, the others in the inactive list.
type page struct {
	present    bool
	ready      int64 // ns: when its read from disk completes
	touched    bool  // the target has touched it since reclaim last looked at it
	mapped     bool  // the target has it in its page tables
	locked     bool
	active     bool
	payer      uint64 // the control group of the machine when it was read
	borrowed   bool   // another control group pays for it: it is in no list, and does not count
	prev, next *page
}

// list is a ring of pages. The newest is next to the head.
type list struct{ head page }

func (l *list) init() { l.head.prev, l.head.next = &l.head, &l.head }

func (l *list) push(p *page) {
	p.prev, p.next = &l.head, l.head.next
	p.prev.next, p.next.prev = p, p
}

func (p *page) unlink() {
	p.prev.next, p.next.prev = p.next, p.prev
	p.prev, p.next = nil, nil
}

type cache struct {
	pageBytes, limit   int64
	used, locked, over int64
	files              [][]page
	inactive, active   list
}

func (c *cache) init(cfg *Config) {
	c.pageBytes, c.limit = cfg.Page, cfg.Limit
	c.inactive.init()
	c.active.init()
	var pages []int64
	for _, cycle := range cfg.Cycles {
		for _, r := range cycle.Reads {
			for r.File >= len(pages) {
				pages = append(pages, 0)
			}
			pages[r.File] = max(pages[r.File], (r.End()+cfg.Page-1)/cfg.Page)
		}
	}
	for _, n := range pages {
		c.files = append(c.files, make([]page, n))
	}
}

func (c *cache) pages(file int) int64              { return int64(len(c.files[file])) }
func (c *cache) page(file int, number int64) *page { return &c.files[file][number] }

// insert adds a page whose read completes at time ready.
func (c *cache) insert(p *page, ready, now int64) {
	*p = page{present: true, ready: ready}
	c.inactive.push(p)
	c.used += c.pageBytes
	c.reclaim(now)
}

func (c *cache) touch(p *page) { p.touched, p.mapped = true, true }

func (c *cache) remove(p *page) {
	if !p.borrowed {
		p.unlink()
		c.used -= c.pageBytes
	}
	*p = page{}
}

// reclaim evicts pages until the limit is met. It evicts the oldest untouched page of the inactive
// list. Touched pages move to the active list, as Linux does with pages that a page table refers
// to. Pages that are locked or being read are kept.
func (c *cache) reclaim(now int64) {
	for c.used > c.limit {
		victim := c.victim(now)
		if victim == nil {
			c.over = max(c.over, c.used-c.limit)
			return
		}
		c.remove(victim)
	}
}

func (c *cache) victim(now int64) *page {
	for range 2 { // in the second round, the formerly active pages are inactive
		for p := c.inactive.head.prev; p != &c.inactive.head; {
			older := p
			p = p.prev
			switch {
			case older.locked || older.ready > now:
			case older.touched:
				older.touched, older.active = false, true
				older.unlink()
				c.active.push(older)
			default:
				return older
			}
		}
		for p := c.active.head.prev; p != &c.active.head; {
			older := p
			p = p.prev
			if older.locked {
				continue
			}
			older.active, older.touched = false, false
			older.unlink()
			c.inactive.push(older)
		}
	}
	return nil
}

// disk serves one request after the other.
type disk struct {
	bandwidth float64 // bytes per second
	latency   int64   // ns
	free      int64   // ns: when it has completed all requests
}

// read returns when a request that is made now completes (ns).
func (d *disk) read(now, bytes int64) int64 {
	d.free = max(d.free, now) + int64(float64(bytes)/d.bandwidth*1e9)
	return d.free + d.latency
}
