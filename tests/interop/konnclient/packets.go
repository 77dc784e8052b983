package main

import (
	"google.golang.org/grpc"
	pb "sigs.k8s.io/apiserver-network-proxy/konnectivity-client/proto/client"
)

// AgentService is not in the client's module; its one method is a stream of Packets each way.
const connectMethod = "/AgentService/Connect"

var bothWays = grpc.StreamDesc{StreamName: "Connect", ServerStreams: true, ClientStreams: true}

func dialRsp(random, connectID int64, problem string) *pb.Packet {
	return &pb.Packet{Type: pb.PacketType_DIAL_RSP, Payload: &pb.Packet_DialResponse{
		DialResponse: &pb.DialResponse{Random: random, ConnectID: connectID, Error: problem}}}
}

func dialCls(random int64) *pb.Packet {
	return &pb.Packet{Type: pb.PacketType_DIAL_CLS, Payload: &pb.Packet_CloseDial{
		CloseDial: &pb.CloseDial{Random: random}}}
}

func closeReq(connectID int64) *pb.Packet {
	return &pb.Packet{Type: pb.PacketType_CLOSE_REQ, Payload: &pb.Packet_CloseRequest{
		CloseRequest: &pb.CloseRequest{ConnectID: connectID}}}
}

func closeRsp(connectID int64, problem string) *pb.Packet {
	return &pb.Packet{Type: pb.PacketType_CLOSE_RSP, Payload: &pb.Packet_CloseResponse{
		CloseResponse: &pb.CloseResponse{ConnectID: connectID, Error: problem}}}
}

func data(connectID int64, bytes []byte) *pb.Packet {
	return &pb.Packet{Type: pb.PacketType_DATA, Payload: &pb.Packet_Data{
		Data: &pb.Data{ConnectID: connectID, Data: bytes}}}
}

func drain() *pb.Packet {
	return &pb.Packet{Type: pb.PacketType_DRAIN, Payload: &pb.Packet_Drain{Drain: &pb.Drain{}}}
}
