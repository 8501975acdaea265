// Package monitor lets a running prefetchd be asked what it does. [Server] answers on a Unix socket. [List] asks
// all prefetchds of this machine.
//
// Each prefetchd has a socket of its own, named after its target, in a directory that only its user can enter. One
// that still looks for a target has a socket, too. It speaks HTTP. GET /status returns a [Report] as JSON, and GET
// /metrics the same for Prometheus. The names in both formats are a contract: they keep their units and meanings.
// GET /status?detail adds what a picture needs ([prefetch.Detail]), which may change. It is made only while somebody
// asks, so the first answer has none. PUT /budget caps how much of the model is kept from then on (600MB, 2GiB), and
// DELETE /budget takes that cap away. PUT /paused has the target left alone (true), or helped again (false).
package monitor
