package main

import (
	"encoding/base64"
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
)

// The messages of KEP-1281, field for field as it declares them:
//
//	message ConnectOptions { string remote_addr = 1; }
//	message Payload        { bytes data = 1; }
//
// They are put into bytes by protobuf's own wire package, so that no generated code is needed.

type payload struct{ data []byte }

// codec is what gRPC calls for every message.
type codec struct{}

func (codec) Name() string { return "proto" }

func (codec) Marshal(v any) ([]byte, error) {
	message, ok := v.(*payload)
	if !ok {
		return nil, fmt.Errorf("not a payload: %T", v)
	}
	return appendBytes(nil, message.data), nil
}

func (codec) Unmarshal(data []byte, v any) error {
	message, ok := v.(*payload)
	if !ok {
		return fmt.Errorf("not a payload: %T", v)
	}
	found, err := readBytes(data)
	message.data = found
	return err
}

func appendBytes(out, data []byte) []byte {
	if len(data) == 0 {
		return out
	}
	return protowire.AppendBytes(protowire.AppendTag(out, 1, protowire.BytesType), data)
}

// readBytes gives field 1, and skips what it does not know.
func readBytes(data []byte) ([]byte, error) {
	var found []byte
	for len(data) > 0 {
		number, kind, n := protowire.ConsumeTag(data)
		if n < 0 {
			return nil, protowire.ParseError(n)
		}
		data = data[n:]
		if number == 1 && kind == protowire.BytesType {
			value, n := protowire.ConsumeBytes(data)
			if n < 0 {
				return nil, protowire.ParseError(n)
			}
			found, data = append([]byte(nil), value...), data[n:]
			continue
		}
		n = protowire.ConsumeFieldValue(number, kind, data)
		if n < 0 {
			return nil, protowire.ParseError(n)
		}
		data = data[n:]
	}
	return found, nil
}

// metadataKey is where a call says its target.
const metadataKey = "x-kube-net-proxy"

var encodings = map[string]*base64.Encoding{
	"std": base64.StdEncoding, "url": base64.URLEncoding,
	"rawstd": base64.RawStdEncoding, "rawurl": base64.RawURLEncoding,
}

func connectOptions(address, encoding string) (string, error) {
	if encodings[encoding] == nil {
		return "", fmt.Errorf("unknown encoding %q", encoding)
	}
	return encodings[encoding].EncodeToString(appendBytes(nil, []byte(address))), nil
}

func readConnectOptions(value string) (string, error) {
	data, err := base64.StdEncoding.DecodeString(value)
	if err != nil {
		return "", err
	}
	address, err := readBytes(data)
	if err == nil && len(address) == 0 {
		err = errors.New("no remote_addr")
	}
	return string(address), err
}
