package config

import (
	"github.com/pgoutbox/outbox/cmd/internal/config/scalar"
)

// Quota bounds what is sent of one database, to all of its destinations together.
type Quota struct {
	Messages int         `json:"messages" min:"0" max:"10000000" jsonschema:"Messages a second at most, in all processes together; each shard group of each destination has an equal part. 0: no bound."`
	Bytes    scalar.Size `json:"bytes" min:"0" jsonschema:"Their size a second at most. 0: no bound."`
}
