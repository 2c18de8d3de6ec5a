package webhook

import (
	"bytes"
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"hash"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Names of the headers that carry a signature.
const (
	HeaderID        = "Webhook-Id"
	HeaderTimestamp = "Webhook-Timestamp"
	HeaderSignature = "Webhook-Signature"
)

// Reasons why a request fails verification.
var (
	// ErrUnsigned: a header is missing or malformed.
	ErrUnsigned = errors.New("webhook: no valid id, timestamp and signature in the headers")
	// ErrExpired: the timestamp is too far in the past or in the future. The request was recorded and sent
	// again, or a clock is wrong.
	ErrExpired = errors.New("webhook: the timestamp is outside the tolerance; check the clocks of both ends")
	// ErrSignature: no signature is by one of the keys.
	ErrSignature = errors.New("webhook: no signature is by a key of ours; check that both ends have the same secret")
)

// Key signs, verifies, or both. The zero Key does neither.
type Key struct {
	secret  []byte
	macs    *sync.Pool // of *mac, for the secret
	private ed25519.PrivateKey
	public  ed25519.PublicKey
}

// ParseKey reads a key in the form of Standard Webhooks, in base64: "whsec_…" is a secret of 24 to 64 bytes that both
// ends share (the prefix is optional), "whsk_…" an Ed25519 private key to sign with (the seed, or seed and public key),
// "whpk_…" an Ed25519 public key to verify with. Errors don't repeat the text.
func ParseKey(text string) (Key, error) {
	text = strings.TrimSpace(text)
	kind, encoded := "whsec_", text
	if prefix, rest, found := strings.Cut(text, "_"); found {
		kind, encoded = prefix+"_", rest
	}
	raw, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil {
		return Key{}, errors.New(`webhook: a key is not one of whsec_…, whsk_… and whpk_… in base64; make a secret with: echo "whsec_$(openssl rand -base64 32)"`)
	}
	switch {
	case kind == "whsec_" && len(raw) >= 24 && len(raw) <= 64:
		return Key{secret: raw, macs: &sync.Pool{New: func() any { return &mac{Hash: hmac.New(sha256.New, raw)} }}}, nil
	case kind == "whsk_" && len(raw) == ed25519.SeedSize:
		return privateKey(ed25519.NewKeyFromSeed(raw)), nil
	case kind == "whsk_" && len(raw) == ed25519.PrivateKeySize:
		key := privateKey(ed25519.NewKeyFromSeed(raw[:ed25519.SeedSize]))
		if !key.private.Equal(ed25519.PrivateKey(raw)) {
			return Key{}, errors.New("webhook: the two halves of a private key (whsk_) don't belong together")
		}
		return key, nil
	case kind == "whpk_" && len(raw) == ed25519.PublicKeySize:
		return Key{public: raw}, nil
	case kind == "whsec_":
		return Key{}, fmt.Errorf("webhook: a secret has %d bytes; 24 to 64 are needed", len(raw))
	case kind == "whsk_" || kind == "whpk_":
		return Key{}, fmt.Errorf("webhook: a key %s… has %d bytes; 32 are needed", kind, len(raw))
	}
	return Key{}, errors.New("webhook: a key begins with none of whsec_, whsk_ and whpk_")
}

func privateKey(private ed25519.PrivateKey) Key {
	return Key{private: private, public: private.Public().(ed25519.PublicKey)}
}

// ParseKeys reads several keys and reports all faults together.
func ParseKeys(texts ...string) ([]Key, error) {
	keys := make([]Key, 0, len(texts))
	var faults []error
	for i, text := range texts {
		key, err := ParseKey(text)
		if err != nil {
			faults = append(faults, fmt.Errorf("key %d: %w", i+1, err))
		}
		keys = append(keys, key)
	}
	return keys, errors.Join(faults...)
}

// CanSign reports whether k is a shared secret or a private key.
func (k Key) CanSign() bool { return k.secret != nil || k.private != nil }

// Sign sets the headers that identify and sign a request with the given body: id, timestamp, and one signature of each
// key that can sign. While a secret is being replaced, both it and its successor sign, until every receiver has the new
// one.
func Sign(h http.Header, keys []Key, id string, at time.Time, body []byte) {
	var room [256]byte // enough for a timestamp and two signatures
	text := strconv.AppendInt(room[:0], at.Unix(), 10)
	digits := len(text)
	stamp := string(text)
	for _, k := range keys {
		if !k.CanSign() {
			continue
		}
		if len(text) > digits {
			text = append(text, ' ')
		}
		if k.secret != nil {
			text = append(text, "v1,"...)
			text = k.appendMAC(text, id, stamp, body)
		} else {
			text = append(text, "v1a,"...)
			text = base64.StdEncoding.AppendEncode(text, ed25519.Sign(k.private, content(id, stamp, body)))
		}
	}
	values := []string{id, stamp, string(text[digits:])}
	h[HeaderID], h[HeaderTimestamp] = values[0:1:1], values[1:2:2]
	if values[2] != "" {
		h[HeaderSignature] = values[2:3:3]
	}
}

// Verify checks that a request with these headers and this body was signed by one of keys, at most tolerance before or
// after now. It returns nil, ErrUnsigned, ErrExpired or ErrSignature. A repeat within the tolerance is valid: recognise
// it by its id.
func Verify(h http.Header, keys []Key, body []byte, now time.Time, tolerance time.Duration) error {
	id, stamp, given := h.Get(HeaderID), h.Get(HeaderTimestamp), h.Get(HeaderSignature)
	at, err := strconv.ParseInt(stamp, 10, 64)
	// The signed content is "id.timestamp.body". With a dot in the id, the same text could be split differently; with a
	// sign before the timestamp, one time would have two texts.
	if id == "" || given == "" || err != nil || strings.Contains(id, ".") || stamp != strconv.FormatInt(at, 10) {
		return ErrUnsigned
	}
	if signed := time.Unix(at, 0); signed.Before(now.Add(-tolerance)) || signed.After(now.Add(tolerance)) {
		return ErrExpired
	}
	const most = 32 // the most signatures to check: each may cost as much as one of our own
	signatures := strings.SplitN(given, " ", most+1)
	for _, k := range keys {
		if k.verifies(signatures[:min(len(signatures), most)], id, stamp, body) {
			return nil
		}
	}
	return ErrSignature
}

func (k Key) verifies(signatures []string, id, stamp string, body []byte) bool {
	var expected, signed []byte
	for _, text := range signatures {
		version, encoded, _ := strings.Cut(text, ",")
		switch {
		case version == "v1" && k.secret != nil:
			signature, err := base64.StdEncoding.DecodeString(encoded)
			if expected == nil {
				m := k.macs.Get().(*mac)
				expected = bytes.Clone(m.sum(id, stamp, body))
				k.macs.Put(m)
			}
			if err == nil && hmac.Equal(signature, expected) {
				return true
			}
		case version == "v1a" && k.public != nil:
			signature, err := base64.StdEncoding.DecodeString(encoded)
			if signed == nil {
				signed = content(id, stamp, body)
			}
			if err == nil && ed25519.Verify(k.public, signed, signature) {
				return true
			}
		}
	}
	return false
}

// mac computes authentication codes with one secret, one after the other: preparing the secret costs as much as a short
// message.
type mac struct {
	hash.Hash
	scratch []byte
}

// sum returns a code, which is valid until the next call.
func (m *mac) sum(id, stamp string, body []byte) []byte {
	m.Reset()
	m.scratch = appendContent(m.scratch[:0], id, stamp)
	m.Write(m.scratch)
	m.Write(body)
	m.scratch = m.Sum(m.scratch[:0])
	return m.scratch
}

func (k Key) appendMAC(text []byte, id, stamp string, body []byte) []byte {
	m := k.macs.Get().(*mac)
	defer k.macs.Put(m)
	return base64.StdEncoding.AppendEncode(text, m.sum(id, stamp, body))
}

func content(id, stamp string, body []byte) []byte {
	return append(appendContent(make([]byte, 0, len(id)+len(stamp)+len(body)+2), id, stamp), body...)
}

// appendContent appends the signed content that precedes the body.
func appendContent(b []byte, id, stamp string) []byte {
	b = append(append(b, id...), '.')
	return append(append(b, stamp...), '.')
}
