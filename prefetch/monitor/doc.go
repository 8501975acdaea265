// Package monitor lets a running prefetchd be asked what it does: [Server] answers on a Unix socket, [List] asks all
// of this machine.
//
// Each prefetchd has a socket of its own, named after its target, in a directory that only its user can enter. It
// speaks HTTP: GET /status is a [Report] as JSON, GET /metrics the same for Prometheus; PUT /budget caps how much of
// the model is kept (600MB, 2GiB) from then on. The names in both are a contract: what is there keeps its name, unit
// and meaning.
package monitor
