"""How many public models ``--torchcheck-model`` understands by their name alone.

``python benchmarks/infer_models.py`` works out inputs, targets and loss of each model of the list whose
library is installed, runs a training step of what it declared, and prints a row for each and the counts. Names
of libraries or parts of names as arguments choose among them. The exit status is 1 where fewer than three
quarters are understood.
"""

from __future__ import annotations

import subprocess
import sys
import time
from importlib.util import find_spec
from typing import Final

BERT: Final = (
    "vocab_size=99,hidden_size=32,num_hidden_layers=2,num_attention_heads=4,intermediate_size=37"
)
VIT: Final = "image_size=64,patch_size=16,num_classes=10,dim=32,depth=1,heads=2,mlp_dim=48"
MODELS: Final = (
    f"transformers:BertForSequenceClassification({BERT},num_labels=3)",
    f"transformers:RobertaForMaskedLM({BERT},max_position_embeddings=40)",
    f"transformers:LlamaForCausalLM({BERT})",
    "transformers:GPT2LMHeadModel(vocab_size=99,n_positions=64,n_embd=32,n_layer=2,n_head=4)",
    "transformers:T5ForConditionalGeneration(vocab_size=99,d_model=32,d_kv=8,d_ff=37,num_layers=2,num_heads=4)",
    "transformers:DistilBertForTokenClassification(vocab_size=99,dim=32,n_layers=2,n_heads=4,hidden_dim=37)",
    (
        "transformers:ViTForImageClassification(image_size=32,patch_size=8,hidden_size=32,num_hidden_layers=2,"
        "num_attention_heads=4,intermediate_size=37)"
    ),
    "transformers:ResNetForImageClassification(embedding_size=16,hidden_sizes=[16,32],depths=[1,1],num_labels=4)",
    f"transformers:BertModel({BERT})",
    f"transformers:ElectraForQuestionAnswering({BERT},embedding_size=32)",
    f"transformers:BertForMultipleChoice({BERT})",
    (
        "transformers:SegformerForSemanticSegmentation(num_labels=4,hidden_sizes=[8,16,24,32],depths=[1,1,1,1],"
        "num_attention_heads=[1,1,2,2],decoder_hidden_size=16)"
    ),
    (
        "transformers:Wav2Vec2ForSequenceClassification(hidden_size=16,num_hidden_layers=1,num_attention_heads=2,"
        "intermediate_size=32,conv_dim=[16,16],conv_stride=[5,2],conv_kernel=[10,3],num_feat_extract_layers=2,"
        "num_conv_pos_embeddings=4,num_conv_pos_embedding_groups=2)"
    ),
    (
        "transformers:PatchTSTForPrediction(num_input_channels=2,context_length=32,patch_length=8,patch_stride=8,"
        "d_model=16,num_attention_heads=2,num_hidden_layers=1,ffn_dim=32,prediction_length=8)"
    ),
    f"vit_pytorch:ViT({VIT})",
    f"vit_pytorch.simple_vit:SimpleViT({VIT})",
    f"vit_pytorch.deepvit:DeepViT({VIT})",
    f"vit_pytorch.vit_for_small_dataset:ViT({VIT})",
    "vit_pytorch.cct:CCT(img_size=(64,64),embedding_dim=32,n_conv_layers=1,num_layers=1,num_heads=2,num_classes=10)",
    (
        "vit_pytorch.nest:NesT(image_size=64,patch_size=8,dim=32,heads=2,num_hierarchies=2,block_repeats=(1,1),"
        "num_classes=10)"
    ),
    (
        "vit_pytorch.vivit:ViViT(image_size=32,frames=4,image_patch_size=16,frame_patch_size=2,num_classes=5,dim=32,"
        "spatial_depth=1,temporal_depth=1,heads=2,mlp_dim=48)"
    ),
    "vit_pytorch.vit_1d:ViT(seq_len=64,patch_size=8,num_classes=5,dim=32,depth=1,heads=2,mlp_dim=48)",
    (
        "diffusers:UNet2DModel(sample_size=16,in_channels=1,out_channels=1,block_out_channels=(8,16),layers_per_block=1,"
        "norm_num_groups=4,down_block_types=('DownBlock2D','DownBlock2D'),up_block_types=('UpBlock2D','UpBlock2D'))"
    ),
    "diffusers:AutoencoderKL(block_out_channels=(8,),norm_num_groups=4,latent_channels=2,sample_size=16)",
    "diffusers:VQModel(block_out_channels=(8,),norm_num_groups=4,latent_channels=2,sample_size=16,num_vq_embeddings=8)",
    (
        "diffusers:UNet2DConditionModel(sample_size=16,in_channels=2,out_channels=2,block_out_channels=(8,16),"
        "layers_per_block=1,norm_num_groups=4,cross_attention_dim=8,attention_head_dim=2,"
        "down_block_types=('CrossAttnDownBlock2D','DownBlock2D'),up_block_types=('UpBlock2D','CrossAttnUpBlock2D'))"
    ),
    (
        "diffusers:DiTTransformer2DModel(num_attention_heads=2,attention_head_dim=8,in_channels=2,num_layers=1,"
        "sample_size=8,num_embeds_ada_norm=8)"
    ),
    "torch_geometric.nn:GCN(in_channels=8,hidden_channels=16,num_layers=2,out_channels=4)",
    "torch_geometric.nn:GAT(in_channels=8,hidden_channels=16,num_layers=2,out_channels=4,heads=2)",
    "torch_geometric.nn:GraphSAGE(in_channels=8,hidden_channels=16,num_layers=2,out_channels=4)",
    "torch_geometric.nn:SchNet(hidden_channels=16,num_filters=16,num_interactions=1,num_gaussians=8)",
    "torch_geometric.nn:MLP([8,16,4])",
    "monai.networks.nets:UNet(spatial_dims=2,in_channels=1,out_channels=2,channels=(4,8,16),strides=(2,2))",
    "monai.networks.nets:DenseNet121(spatial_dims=2,in_channels=1,out_channels=3)",
    "monai.networks.nets:SegResNet(spatial_dims=3,init_filters=8,in_channels=1,out_channels=2)",
    "monai.networks.nets:AutoEncoder(spatial_dims=2,in_channels=1,out_channels=1,channels=(4,8),strides=(2,2))",
    (
        "monai.networks.nets:ViT(in_channels=1,img_size=(32,32),patch_size=(8,8),hidden_size=24,mlp_dim=32,num_layers=1,"
        "num_heads=2,spatial_dims=2,classification=True,num_classes=3)"
    ),
    "linformer:Linformer(dim=32,seq_len=64,depth=1,heads=2,k=16)",
    "linear_attention_transformer:LinearAttentionTransformerLM(num_tokens=99,dim=32,heads=2,depth=1,max_seq_len=64)",
    "performer_pytorch:PerformerLM(num_tokens=99,max_seq_len=64,dim=32,depth=1,heads=2)",
    "reformer_pytorch:ReformerLM(num_tokens=99,dim=32,depth=1,max_seq_len=128,heads=2,bucket_size=16,causal=True)",
    "sinkhorn_transformer:SinkhornTransformerLM(num_tokens=99,dim=32,heads=2,depth=1,max_seq_len=64,bucket_size=16)",
    "routing_transformer:RoutingTransformerLM(num_tokens=99,dim=32,heads=2,depth=1,max_seq_len=64,window_size=16)",
    (
        "perceiver_pytorch:Perceiver(num_freq_bands=4,depth=1,max_freq=8.0,input_channels=3,num_latents=8,latent_dim=16,"
        "num_classes=5)"
    ),
    "local_attention:LocalTransformer(num_tokens=99,dim=32,depth=1,max_seq_len=64,local_attn_window_size=16)",
    "conformer:ConformerBlock(dim=32,dim_head=8,heads=2)",
    "tab_transformer_pytorch:FTTransformer(categories=(4,5),num_continuous=3,dim=16,dim_out=1,depth=1,heads=2)",
    "tab_transformer_pytorch:TabTransformer(categories=(4,5),num_continuous=3,dim=16,dim_out=1,depth=1,heads=2)",
    "pytorch_tcn:TCN(num_inputs=4,num_channels=[8,8],kernel_size=3,causal=True)",
    "ncps.torch:CfC(8,16,batch_first=True)",
    "vector_quantize_pytorch:VectorQuantize(dim=16,codebook_size=32)",
    "vector_quantize_pytorch:FSQ(levels=[8,5,5])",
    "tsai.models.InceptionTime:InceptionTime(c_in=3,c_out=4)",
    "tsai.models.FCN:FCN(c_in=3,c_out=4)",
    (
        "speechbrain.lobes.models.ECAPA_TDNN:ECAPA_TDNN(input_size=16,channels=[16,16,16,16,48],attention_channels=8,"
        "lin_neurons=12)"
    ),
    "ncps.torch:LTC(8,16,batch_first=True)",
    "mixture_of_experts:MoE(dim=16,num_experts=4)",
    "rotary_embedding_torch:RotaryEmbedding(dim=16)",
    "denoising_diffusion_pytorch:Unet(dim=8,dim_mults=(1,2),channels=3)",
    "torch.nn:Transformer(d_model=16,nhead=2,num_encoder_layers=1,num_decoder_layers=1,dim_feedforward=32,batch_first=True)",
)  # fmt: skip
ONE: Final = """
import sys, warnings
warnings.filterwarnings("ignore")
from pytest_torchcheck.infer.inference import Uninferable, infer
from pytest_torchcheck.infer.target import TargetError, arguments_of, load, parse_target
target = parse_target(sys.argv[1])
try:
    model = load(target, folder=".")
    found = infer(model, arguments=arguments_of(target, model))
    report = found.contract(name=target.name).check(["backward"])
except TargetError as error:
    print("not loaded:", " ".join(str(error).split())[-200:])
except Uninferable as error:
    print("not understood:", " ".join(str(error).split()))
except Exception as error:
    print("error:", type(error).__name__, " ".join(str(error).split())[:200])
else:
    wrong = [one.summary for one in report.findings if one.status in ("violated", "error")]
    declared = " ".join(line.strip() for line in found.lines())
    print(f"does not train: {wrong[0]}" if wrong else f"understood: {declared}")
"""


def main() -> int:
    """Print a row for each model and the counts."""
    chosen = [
        name for name in MODELS if not sys.argv[1:] or any(word in name for word in sys.argv[1:])
    ]
    counts: dict[str, int] = {}
    for name in chosen:
        if find_spec(name.partition(":")[0].partition(".")[0]) is None:
            continue
        start = time.perf_counter()
        try:
            done = subprocess.run(
                [sys.executable, "-c", ONE, name],
                capture_output=True, text=True, timeout=240, check=False,
            )  # fmt: skip
            said = (done.stdout.strip().splitlines() or [f"error: {done.stderr.strip()[-200:]}"])[
                -1
            ]
        except subprocess.TimeoutExpired:
            said = "error: more than 240 s"
        verdict = said.partition(":")[0]
        counts[verdict] = counts.get(verdict, 0) + 1
        seconds = time.perf_counter() - start
        print(f"{name.partition('(')[0]:60} {seconds:5.1f} s  {said}", flush=True)
    total = sum(counts.values()) - counts.get("not loaded", 0)  # a library that lacks another
    good = counts.get("understood", 0)
    print(f"{good} of {total}: {counts}")
    return 0 if total and good * 4 >= total * 3 else 1


if __name__ == "__main__":
    sys.exit(main())
