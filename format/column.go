package format

import (
	"encoding/base64"
	"fmt"
	"math/big"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// columnType is Debezium's form of a PostgreSQL column type.
type columnType struct {
	base  string // of the schema
	named string // the rest of the schema, after "optional"
	quote bool   // in JSON, write's output is a string

	// write appends a value, whose text is PostgreSQL's output. ok is false if the text isn't a value of the type. nil:
	// the text unchanged.
	write func(b []byte, text string, json bool) (to []byte, ok bool)
}

// typeNamed finds a type by PostgreSQL's name or an alias of it.
func typeNamed(name string) (columnType, error) {
	if m := numericType.FindStringSubmatch(name); m != nil {
		scale, _ := strconv.Atoi(m[2]) // at most three digits, or none
		return decimal(m[1], scale), nil
	}
	t, found := columnTypes[name]
	if !found {
		return t, fmt.Errorf("%q is no type that is known here: smallint, integer, bigint, real, double precision, "+
			"boolean, numeric(p,s), timestamptz, timestamp, date, uuid, jsonb, text", name)
	}
	return t, nil
}

var (
	numericType = regexp.MustCompile(`^(?:numeric|decimal)\((\d{1,3})(?:, ?(\d{1,3}))?\)$`)

	columnTypes = map[string]columnType{
		"text":             {base: "string"},
		"uuid":             {base: "string", named: `,"name":"io.debezium.data.Uuid","version":1`},
		"json":             {base: "string", named: `,"name":"io.debezium.data.Json","version":1`},
		"jsonb":            {base: "string", named: `,"name":"io.debezium.data.Json","version":1`},
		"smallint":         integer(16),
		"integer":          integer(32),
		"bigint":           integer(64),
		"real":             float("float", 32),
		"double precision": float("double", 64),
		"boolean":          {base: "boolean", write: boolean},
		"timestamptz": {base: "string", named: `,"name":"io.debezium.time.ZonedTimestamp","version":1`, quote: true,
			write: moment(func(b []byte, at time.Time) []byte { return at.UTC().AppendFormat(b, timeLayout) },
				"2006-01-02 15:04:05.999999Z07", "2006-01-02 15:04:05.999999Z07:00", "2006-01-02 15:04:05.999999Z07:00:00")},
		"timestamp": {base: "int64", named: `,"name":"io.debezium.time.MicroTimestamp","version":1`,
			write: moment(func(b []byte, at time.Time) []byte { return strconv.AppendInt(b, at.UnixMicro(), 10) },
				"2006-01-02 15:04:05.999999")},
		"date": {base: "int32", named: `,"name":"io.debezium.time.Date","version":1`,
			write: moment(func(b []byte, at time.Time) []byte { return strconv.AppendInt(b, at.Unix()/86400, 10) }, "2006-01-02")},
	}
)

func integer(bits int) columnType {
	return columnType{base: fmt.Sprint("int", bits), write: func(b []byte, text string, _ bool) ([]byte, bool) {
		n, err := strconv.ParseInt(text, 10, bits)
		return strconv.AppendInt(b, n, 10), err == nil
	}}
}

func float(base string, bits int) columnType {
	return columnType{base: base, write: func(b []byte, text string, json bool) ([]byte, bool) {
		f, err := strconv.ParseFloat(text, bits)
		at := len(b)
		if b = appendDouble(b, f, bits); !json && b[at] == '"' {
			b = append(b[:at], b[at+1:len(b)-1]...)
		}
		return b, err == nil
	}}
}

func boolean(b []byte, text string, _ bool) ([]byte, bool) {
	return append(b, text...), text == "true" || text == "false"
}

func moment(write func([]byte, time.Time) []byte, layouts ...string) func([]byte, string, bool) ([]byte, bool) {
	return func(b []byte, text string, _ bool) ([]byte, bool) {
		for _, layout := range layouts {
			if at, err := time.Parse(layout, text); err == nil {
				return write(b, at), true
			}
		}
		return b, false
	}
}

// decimal is Connect's Decimal: in JSON the base64 of the bytes of the unscaled number, in two's complement.
func decimal(precision string, scale int) columnType {
	return columnType{
		base:  "bytes",
		named: fmt.Sprintf(`,"name":"org.apache.kafka.connect.data.Decimal","version":1,"parameters":{"scale":"%d","connect.decimal.precision":"%s"}`, scale, precision),
		quote: true,
		write: func(b []byte, text string, json bool) ([]byte, bool) {
			whole, fraction, _ := strings.Cut(text, ".")
			n, ok := new(big.Int).SetString(whole+fraction, 10)
			if !ok || len(fraction) != scale {
				return b, false
			}
			if !json {
				return append(b, text...), true
			}
			return base64.StdEncoding.AppendEncode(b, twosComplement(n)), true
		},
	}
}

// twosComplement is Java's BigInteger.toByteArray: the fewest bytes whose first bit is the sign.
func twosComplement(n *big.Int) []byte {
	if n.Sign() >= 0 {
		return n.FillBytes(make([]byte, n.BitLen()/8+1))
	}
	size := new(big.Int).Not(n).BitLen()/8 + 1
	return new(big.Int).Add(n, new(big.Int).Lsh(big.NewInt(1), uint(8*size))).FillBytes(make([]byte, size))
}
